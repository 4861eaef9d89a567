"""Warnings for runs that learn nothing or diverge, named and rate-limited, each with a remedy; and one refusal."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field

from torch import nn

from vla_gym.errors import VLAZooError
from zoo.config.advice import CLIP_FRACTION_HIGH, ENTROPY_LOW, KL_HIGH, NO_SIGNAL_ADVICE, TrainingWarning
from zoo.evaluation.statistics import wilson_interval


class NothingToLearn(VLAZooError, RuntimeError):
    """A run without a single gradient is refused."""


@dataclass(frozen=True, kw_only=True)
class UpdateHealth:
    """Numbers of one update that `faults` checks; nan means "does not apply"."""

    groups: int = 0
    """GRPO: groups collected."""
    groups_with_signal: int = 0
    """GRPO: groups whose scores differ (and pass the filter)."""
    groups_left_out: int = 0
    """GRPO: groups whose scores differ and that the filter or a lost episode left out."""
    groups_solved: int = 0
    """GRPO: groups of which every member succeeded."""
    no_signal_updates: int = 0
    """GRPO: consecutive updates, this one included, without a group with signal or a success."""
    no_success_episodes: int = 0
    """PPO: episodes so far if none of them was solved or paid anything, else 0."""
    advantage_spread: float = math.nan
    """Highest minus lowest advantage before any normalisation."""
    clip_fraction: float = math.nan
    """Share of elements that the clip cut off."""
    kl: float = math.nan
    """k3 estimate of KL(old || new) per element, nats."""
    entropy: float = math.nan
    """Mean entropy per element of a choice between tokens, nats; that of a density may well be negative."""
    value_gap: float = math.nan
    """Root mean square error of the values, over the largest return that the rewards seen allow."""
    skipped_steps: int = 0
    """Optimiser steps left out because the gradient was not finite."""
    ratio_gap: float = math.nan
    """Largest |ratio - 1| of the first minibatch, before any step."""
    half_precision: bool = False
    """Whether weights are in bfloat16 or float16, whose products depend on the size of the batch."""


VALUE_GAP_HIGH = 1.0
RATIO_GAP_HIGH = 0.05
RATIO_GAP_HIGH_HALF = math.expm1(2 * 2.0**-3)
"""0.28. Neighbouring bfloat16 numbers between 16 and 32 are 2^-3 apart: where the logit chosen and the largest other
one are each rounded to the neighbour, in opposite directions, a log-probability moves by at most 2 * 2^-3."""
NO_SIGNAL_UPDATES_HIGH = 5
NO_SUCCESS_EPISODES_HIGH = 64


def nothing_to_learn(episodes: int) -> str:
    """Message that refuses a run after `episodes` without a success."""
    _, high = wilson_interval(0, episodes)
    return (
        f"not one success in {episodes} episodes (the true rate is below {high:.1%}, 95 % interval), and groups that "
        f"all failed teach nothing. {NO_SIGNAL_ADVICE}. To go on all the same: -params max_barren_episodes:0"
    )


def in_half_precision(policy: nn.Module) -> bool:
    """Whether any weights, frozen ones included, are in bfloat16 or float16."""
    return any(one.is_floating_point() and one.dtype.itemsize < 4 for one in policy.parameters())


def faults(health: UpdateHealth) -> dict[str, str]:
    """Name -> sentence and remedy, for every number out of its normal range."""
    found: dict[str, str] = {}
    # All solved is no fault: nothing is left to learn.
    if not health.groups_with_signal and health.groups_left_out:
        found["AllGroupsDead"] = (
            f"of {health.groups} groups {health.groups_left_out} have both better and worse members, and score_bounds "
            "or a lost episode left them out, so nothing was learnt. Loosen score_bounds, or raise temperature or "
            "group_size"
        )
    elif not health.groups_with_signal and health.groups_solved < health.groups:
        found["AllGroupsDead"] = (
            f"none of {health.groups} groups has both better and worse members, so nothing was learnt. Start from a "
            "policy that sometimes succeeds, or raise temperature or group_size"
        )
    if health.no_signal_updates >= NO_SIGNAL_UPDATES_HIGH:
        found["NoSuccessAtAll"] = (
            f"not one success in {health.no_signal_updates} updates running: group comparison cannot start from 0 %. "
            f"{NO_SIGNAL_ADVICE}"
        )
    if health.no_success_episodes >= NO_SUCCESS_EPISODES_HIGH:
        _, high = wilson_interval(0, health.no_success_episodes)
        found["NoSuccessAtAll"] = (
            f"not one success and no reward in {health.no_success_episodes} episodes (the true rate is below "
            f"{high:.1%}, 95 % interval): there is nothing to learn from yet. {NO_SIGNAL_ADVICE}"
        )
    if health.advantage_spread == 0.0:
        found["ZeroAdvantage"] = (
            "every advantage is the same, so the policy gradient is zero. Check that rewards arrive, "
            "or collect more per update (n_steps, num_envs)"
        )
    if health.clip_fraction > CLIP_FRACTION_HIGH:
        found["ClipFractionHigh"] = (
            f"{health.clip_fraction:.0%} of the ratios are clipped (normal: below {CLIP_FRACTION_HIGH:.0%}). "
            "Lower learning_rate or n_epochs, or give a target_kl"
        )
    if health.kl > KL_HIGH:
        found["KLHigh"] = (
            f"KL is {health.kl:.3g} nats after one update (normal: below {KL_HIGH}). "
            "Lower learning_rate or n_epochs, or give a target_kl"
        )
    if health.entropy < ENTROPY_LOW:
        found["EntropyCollapse"] = (
            f"entropy is {health.entropy:.3g} nats: the policy no longer explores. Raise ent_coef or temperature"
        )
    if health.value_gap > VALUE_GAP_HIGH:
        found["ValueDivergence"] = (
            f"the values' error is {health.value_gap:.3g} times the largest return possible. "
            "Lower the value learning rate (policy_kwargs value_lr) or vf_coef, or set clip_range_vf"
        )
    if health.skipped_steps:
        found["GradientNotFinite"] = (
            f"{health.skipped_steps} optimiser step(s) skipped because the gradient was not finite. "
            "Lower learning_rate, or train in float32"
        )
    limit = RATIO_GAP_HIGH_HALF if health.half_precision else RATIO_GAP_HIGH
    if health.ratio_gap > limit:
        found["RatioNotOne"] = (
            f"before the first step a probability ratio is off 1 by {health.ratio_gap:.3g} (normal: below {limit:.2g} "
            f"in {'half' if health.half_precision else 'single'} precision): collecting and training score decisions "
            "differently. Set recompute_logprobs=True, or train in float32"
        )
    return found


@dataclass
class TrainingWarnings:
    """Warns of each named fault at its 1st, 2nd, 4th, 8th ... occurrence, so that a long run is not flooded."""

    counts: dict[str, int] = field(default_factory=dict)
    """Occurrences of each fault."""

    def check(self, health: UpdateHealth) -> list[str]:
        """Warn of the faults whose occurrence is due; return the names of all."""
        found = faults(health)
        for name, text in found.items():
            count = self.counts[name] = self.counts.get(name, 0) + 1
            if count & (count - 1) == 0:
                again = f" (occurrence {count})" if count > 1 else ""
                warnings.warn(f"{name}: {text}{again}.", TrainingWarning, stacklevel=2)
        return list(found)
