"""Numbers of one update, over the minibatches and ranks it was made with, further ones of the log, and warnings.

Runs that learn nothing or diverge are warned of, each fault named and rate-limited, with a remedy.

An update keeps each micro-batch's log-ratios (detached); everything is computed once at its end, as sums per
minibatch that ranks add up, so elements count the same wherever they were scored and the loop itself stays light.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile

import torch
from torch import Tensor, nn

from vla_gym.errors import BadValue, VLAZooError
from vla_policies.devices import upload
from zoo.algorithms.losses import LossTerms, PPOLoss, Scores, clip_binds, kl_k1, kl_k3, reference_kl
from zoo.config.advice import CLIP_FRACTION_HIGH, ENTROPY_LOW, KL_HIGH, NO_SIGNAL_ADVICE, TrainingWarning
from zoo.config.algorithm_configs import LogprobLevel
from zoo.distributed.process_group import ProcessGroup
from zoo.evaluation.statistics import wilson_interval
from zoo.rollout.buffer import ChunkRolloutBuffer, Minibatch, importance_weight, to_level
from zoo.rollout.minibatches import MicroBatch

_TERMS = ("loss", "policy", "policy_abs", "value", "entropy_bonus")
"""The fields of `LossTerms`, in their order."""
_LOGGED = ("ratio", "ratio_abs", "clipped_ratio", "approx_kl", "approx_kl_k3", "clip_fraction", "entropy")
_PER_ELEMENT = (*_LOGGED, "outside", "elements")
_SUMS = (*_TERMS, *_PER_ELEMENT, "moved", "values", "ref_kl", "ref_elements")


@dataclass(frozen=True)
class _Scored:
    """A scored micro-batch, without observations and graphs.

    Masks are applied once, at the end of the update; data-dependent sizes would make a GPU be waited for.
    """

    minibatch: int
    weight: float
    terms: LossTerms
    scores: Scores
    batch: Minibatch
    log_ratio_BL: Tensor
    """log new - log old; 0 where masked."""

    def counted(self, value_BU: Tensor) -> Tensor:
        """Return the values that carry weight, flat."""
        weight_BU = self.batch.value_weight_BU
        return value_BU.flatten() if weight_BU is None else value_BU[weight_BU.expand_as(value_BU) > 0]


class UpdateMetrics:
    """Numbers of one update; keeps neither observations nor graphs.

    Methods that return numbers sum over ranks: every rank must call them.
    """

    def __init__(self, loss: PPOLoss, process_group: ProcessGroup | None = None) -> None:
        self.skipped_steps = 0
        self._loss = loss
        self._process_group = ProcessGroup() if process_group is None else process_group
        self.num_minibatches = 0
        """Minibatches so far."""
        self._epoch_start = 0
        self._micro_batches: list[_Scored] = []
        self._grad_norms: list[Tensor] = []
        self._imitation: list[float] = []

    def begin_epoch(self) -> None:
        """Begin an epoch: SB3's `train/approx_kl` is of the last one alone."""
        self._epoch_start = self.num_minibatches

    def begin_minibatch(self) -> None:
        """Begin a minibatch, which the micro-batches that follow belong to."""
        self.num_minibatches += 1

    def add(self, terms: LossTerms, scores: Scores, micro_batch: MicroBatch) -> None:
        """Add a micro-batch; `terms` and `scores` have no graph any more."""
        if micro_batch.weight:
            batch = replace(micro_batch.batch, obs={}, choice={})
            log_ratio_BL = (scores.logprob_BL - batch.old_logprob_BL).masked_fill(~batch.mask_BL, 0.0)
            part = _Scored(self.num_minibatches - 1, micro_batch.weight, terms, scores, batch, log_ratio_BL)
            self._micro_batches.append(part)

    def add_imitation(self, loss: float) -> None:
        """Add this rank's share of a minibatch's loss of imitation."""
        self._imitation.append(loss)

    def add_step(self, grad_norm: Tensor, *, stepped: bool) -> None:
        """Add one optimiser step; `grad_norm` is the global norm before clipping."""
        if stepped:
            self._grad_norms.append(grad_norm)
        else:
            self.skipped_steps += 1

    def check_learnt(self, update: int) -> None:
        """Raise `BadValue` where no step of the update could be taken, because no gradient was finite."""
        if self.skipped_steps and not self._grad_norms:
            raise BadValue(
                f"update {update} learnt nothing: the gradient was finite in none of its {self.skipped_steps} steps, "
                "from the first on. Lower learning_rate, or train in float32; the weights are those before the update"
            )

    @property
    def empty(self) -> bool:
        """Whether no rank had a minibatch."""
        return not self.num_minibatches

    def latest_kl(self) -> float:
        """k3 estimate of the latest minibatch, nats per element; nan where all of it is masked."""
        kl, count = torch.zeros(2, dtype=torch.float64)
        latest = self.num_minibatches - 1
        for micro_batch in takewhile(lambda record: record.minibatch == latest, reversed(self._micro_batches)):
            kl += kl_k3(micro_batch.log_ratio_BL).sum().cpu()
            count += micro_batch.batch.mask_BL.sum().cpu()
        kl, count = self._process_group.all_reduce_sum(torch.stack([kl, count]))
        return float(kl / count)

    def actor(self) -> dict[str, float]:
        """`train/actor/*` and `train/loss`."""
        sums, count = self._sums, self._sums["elements"].sum()
        # A minibatch may hold masked places only.
        first = int(torch.nonzero(sums["elements"])[0]) if count else 0
        values = {
            "train/loss": float(sums["loss"].mean()),
            "train/actor/policy_loss": float(sums["policy"].mean()),
            "train/actor/policy_loss_abs": float(sums["policy_abs"].mean()),
            **{f"train/actor/{name}": float(sums[name].sum() / count) for name in _LOGGED},
            "train/actor/ratio_first": float(sums["ratio"][first] / sums["elements"][first]),
            "train/actor/ratio_first_gap": self._first_gap(),
            "train/actor/skipped_steps": float(self.skipped_steps),
        }
        if sums["ref_elements"].sum():
            values["train/actor/ref_kl"] = float(sums["ref_kl"].sum() / sums["ref_elements"].sum())
        if self._grad_norms:
            values["train/actor/grad_norm"] = float(torch.stack(self._grad_norms).double().mean())
        if self._imitation:
            whole = self._process_group.all_reduce_sum(torch.tensor(self._imitation, dtype=torch.float64))
            values["train/actor/bc_loss"] = float(whole.mean())
        return values

    def critic(self) -> dict[str, float]:
        """`train/critic/*`, the learning rate excepted."""
        sums, value, target = self._sums, torch.zeros(0), torch.zeros(0)
        if self._micro_batches:
            value = torch.cat([record.counted(record.scores.value_BU) for record in self._micro_batches])
            target = torch.cat([record.counted(record.batch.return_BU) for record in self._micro_batches])
        values = {"train/critic/explained_variance": explained_variance(value, target, self._process_group)}
        if self._loss.vf_coef:
            values["train/critic/value_loss"] = float(sums["value"].mean())
            # 0 where values are not clipped.
            values["train/critic/value_clip_ratio"] = float(sums["moved"].sum() / sums["values"].sum())
        return values

    def as_sb3(self) -> dict[str, float]:
        """The keys of Stable-Baselines3's PPO, computed as it does: plain means over minibatches.

        Of ratios those that hold more than masked places.
        """
        sums, elements = self._sums, self._sums["elements"]
        values = {
            "train/entropy_loss": -float(sums["entropy_bonus"].mean()),
            "train/policy_gradient_loss": float(sums["policy"].mean()),
            "train/approx_kl": float((sums["approx_kl_k3"] / elements)[self._epoch_start :].nanmean()),
            "train/clip_fraction": float((sums["outside"] / elements).nanmean()),
            "train/loss": float(sums["loss"][-1]),
        }
        if self._loss.vf_coef:
            values["train/value_loss"] = float(sums["value"].mean())
        return values

    # Inside -----------------------------------------------------------------------------------------

    @cached_property
    def _sums(self) -> dict[str, Tensor]:
        """Name -> sum of each minibatch over all ranks, float64 `[minibatches]`; the losses are means already."""
        own = torch.zeros(len(_SUMS), self.num_minibatches, dtype=torch.float64)
        if self._micro_batches:
            place = torch.tensor([micro_batch.minibatch for micro_batch in self._micro_batches])
            columns = torch.cat([self._terms(), self._element_sums(), self._counts()], dim=1)
            own.index_add_(1, place, columns.double().cpu().T)
        total = self._process_group.all_reduce_sum(own)
        total[: len(_TERMS)] /= self._process_group.size
        return dict(zip(_SUMS, total, strict=True))

    def _terms(self) -> Tensor:
        """`[micro-batches, len(_TERMS)]`, weighted."""
        terms = torch.stack([term for record in self._micro_batches for term in vars(record.terms).values()])
        terms = terms.double().unflatten(0, (-1, len(_TERMS)))
        weight = torch.tensor([record.weight for record in self._micro_batches])
        return terms * upload(weight.double(), terms.device)[:, None]

    def _element_sums(self) -> Tensor:
        """`[micro-batches, len(_PER_ELEMENT)]`: sums over executed elements."""
        low, high = self._loss.clip_low, self._loss.clip_high
        records = self._micro_batches
        mask_BL = torch.cat([record.batch.mask_BL for record in records])
        log_ratio_BL = torch.cat([record.log_ratio_BL for record in records])
        advantage_BL = torch.cat([record.batch.advantage_BL.expand_as(record.batch.mask_BL) for record in records])
        ratio_BL = log_ratio_BL.exp()
        elements = {
            "ratio": ratio_BL,
            "ratio_abs": (ratio_BL - 1).abs(),
            "clipped_ratio": ratio_BL.clamp(1 - low, 1 + high),
            "approx_kl": kl_k1(log_ratio_BL),
            "approx_kl_k3": kl_k3(log_ratio_BL),
            "clip_fraction": clip_binds(ratio_BL, advantage_BL, clip_low=low, clip_high=high),
            "entropy": torch.cat([record.scores.entropy_BL for record in records]),
            "outside": (ratio_BL - 1).abs() > low,
            "elements": mask_BL,
        }
        sums = torch.stack(
            [elements[name].float().masked_fill(~mask_BL, 0.0).sum(dim=1) for name in _PER_ELEMENT], dim=1
        )
        sizes = [len(record.batch.mask_BL) for record in records]
        return torch.stack([rows.sum(dim=0) for rows in sums.double().split(sizes)])

    def _counts(self) -> Tensor:
        """`[micro-batches, 4]`: values that moved past the clip, values, sum of reference KLs, reference KLs."""
        records, clip = self._micro_batches, math.inf if self._loss.clip_vf is None else self._loss.clip_vf
        # Before clamping: afterwards nothing ever exceeds the bound.
        gaps = [record.counted(record.scores.value_BU - record.batch.old_value_BU).abs() for record in records]
        ref_kls = [_reference_kls(record) for record in records]
        moved = torch.stack([(gap > clip).sum() for gap in gaps])
        ref_kl = torch.stack([kl.sum() for kl in ref_kls])
        sizes = torch.tensor([[gap.numel(), kl.numel()] for gap, kl in zip(gaps, ref_kls, strict=True)])
        num_values, num_ref = sizes.to(moved.device).double().T
        return torch.stack([moved.double(), num_values, ref_kl.double(), num_ref], dim=1)

    def _first_gap(self) -> float:
        """Largest |ratio - 1| of the first minibatch."""
        gaps = [
            micro_batch.log_ratio_BL.exp().sub(1).abs().max().cpu()
            for micro_batch in self._micro_batches
            if micro_batch.minibatch == 0
        ]
        return float(self._process_group.all_reduce_max(torch.stack([torch.tensor(0.0), *gaps]).max()))


def _reference_kls(record: _Scored) -> Tensor:
    """The KL to the reference of every executed token, flat; empty without a reference."""
    logprob_BW, ref_logprob_BW = record.scores.token_logprob_BW, record.batch.ref_logprob_BW
    if logprob_BW is None or ref_logprob_BW is None:
        return record.log_ratio_BL.new_zeros(0)
    return reference_kl(logprob_BW, ref_logprob_BW)[record.batch.token_mask_BW]


def explained_variance(value: Tensor, target: Tensor, process_group: ProcessGroup) -> float:
    """1 - Var(target - value) / Var(target) over the entries of every rank; nan where the targets are all alike."""
    _, spread = process_group.moments(target)
    _, error = process_group.moments(target - value)
    return 1.0 - (error / spread) ** 2 if spread else float("nan")


def rank_means(values: Mapping[str, Tensor], process_group: ProcessGroup) -> dict[str, float]:
    """Mean of each tensor's entries over all ranks; tensors without entries are left out."""
    own = [[float(tensor.double().sum()), float(tensor.numel())] for tensor in values.values()]
    sums = process_group.all_reduce_sum(torch.tensor(own).double())
    return {name: float(total / count) for name, (total, count) in zip(values, sums, strict=True) if count}


def value_range(name: str, values: Tensor, process_group: ProcessGroup) -> dict[str, float]:
    """`<name>_max` and `<name>_min` over all ranks; empty where none has an entry."""
    own = torch.full((2,), -math.inf)
    if values.numel():
        own = torch.stack([values.max(), -values.min()])
    highest, lowest = process_group.all_reduce_max(own).tolist()
    if highest == -math.inf:
        return {}
    return {f"{name}_max": highest, f"{name}_min": -lowest}


def behaviour_gap(buffer: ChunkRolloutBuffer, level: LogprobLevel, process_group: ProcessGroup) -> dict[str, float]:
    """How far the weights that decided are from those the update begins with, over all ranks; empty if they are kept.

    k1 estimate of the KL of a decision's elements, and the share of them that `importance_weight` leaves out.
    """
    behaviour = buffer.behaviour_logprob_TNKA
    if behaviour is None:
        return {}
    executed_M = buffer.executed_TN.flatten()
    behaviour_ML, mask_ML = to_level(behaviour.flatten(0, 1), executed_M, level)
    proximal_ML, _ = to_level(buffer.logprob_TNKA.flatten(0, 1), executed_M, level)
    left_out_ML = importance_weight(proximal_ML, behaviour_ML) == 0
    gaps = {
        "train/actor/behav_approx_kl": kl_k1(proximal_ML - behaviour_ML)[mask_ML],
        "train/actor/behav_clip_fraction": left_out_ML[mask_ML],
    }
    return rank_means(gaps, process_group)


def learning_rates(optimizer: torch.optim.Optimizer) -> Mapping[str, float]:
    """`train/actor/lr` and, where the value head has a group of its own, `train/critic/lr`."""
    rates = {
        str(group.get("name", index)): float(group["lr"]) * float(group.get("lr_scale", 1.0))
        for index, group in enumerate(optimizer.param_groups)
    }
    actor = rates.get("backbone", next(iter(rates.values())))
    return {"train/actor/lr": actor, "train/critic/lr": rates.get("value_head", actor)}


class NothingToLearn(VLAZooError, RuntimeError):
    """A run without a single gradient is refused."""


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


def faults(numbers: Mapping[str, float]) -> dict[str, str]:
    """Name -> sentence and remedy, for every number out of its normal range; one that is left out does not apply.

    Numbers of `UpdateMetrics.actor`, the entropy of choices between tokens only, and

        half_precision       whether weights are in bfloat16 or float16, whose products depend on the size of the batch
        advantage_spread     highest minus lowest advantage before any normalisation
        value_gap            root mean square error of the values over the largest return that the rewards seen allow
        no_success_episodes  PPO: episodes so far if none of them was solved or paid anything, else 0
        groups               GRPO: groups collected; of them
        groups_with_signal   those whose scores differ and that the update uses
        groups_left_out      those whose scores differ and that the filter or a lost episode left out
        groups_solved        those of which every member succeeded
        no_signal_updates    GRPO: consecutive updates, this one included, without a group with signal or a success
    """
    number = defaultdict(lambda: math.nan, numbers)
    measures = ("clip_fraction", "approx_kl_k3", "entropy", "skipped_steps", "ratio_first_gap")
    clip_fraction, kl, entropy, skipped_steps, ratio_gap = (number[f"train/actor/{name}"] for name in measures)
    no_signal = number["groups_with_signal"] == 0
    left_out = no_signal and number["groups_left_out"] > 0
    # All solved is no fault: nothing is left to learn.
    all_alike = no_signal and not left_out and number["groups_solved"] < number["groups"]
    no_success = number["no_success_episodes"] >= NO_SUCCESS_EPISODES_HIGH
    highest_rate = wilson_interval(0, int(number["no_success_episodes"]))[1] if no_success else 1.0
    half_precision = number["half_precision"] > 0
    ratio_gap_high = RATIO_GAP_HIGH_HALF if half_precision else RATIO_GAP_HIGH
    checks = (
        (
            "AllGroupsDead",
            left_out,
            f"of {number['groups']:g} groups {number['groups_left_out']:g} have both better and worse members, and "
            "score_bounds or a lost episode left them out, so nothing was learnt. Loosen score_bounds, or raise "
            "temperature or group_size",
        ),
        (
            "AllGroupsDead",
            all_alike,
            f"none of {number['groups']:g} groups has both better and worse members, so nothing was learnt. Start from "
            "a policy that sometimes succeeds, or raise temperature or group_size",
        ),
        (
            "NoSuccessAtAll",
            number["no_signal_updates"] >= NO_SIGNAL_UPDATES_HIGH,
            f"not one success in {number['no_signal_updates']:g} updates running: group comparison cannot start from "
            f"0 %. {NO_SIGNAL_ADVICE}",
        ),
        (
            "NoSuccessAtAll",
            no_success,
            f"not one success and no reward in {number['no_success_episodes']:g} episodes (the true rate is below "
            f"{highest_rate:.1%}, 95 % interval): there is nothing to learn from yet. {NO_SIGNAL_ADVICE}",
        ),
        (
            "ZeroAdvantage",
            number["advantage_spread"] == 0.0,
            "every advantage is the same, so the policy gradient is zero. Check that rewards arrive, "
            "or collect more per update (n_steps, num_envs)",
        ),
        (
            "ClipFractionHigh",
            clip_fraction > CLIP_FRACTION_HIGH,
            f"{clip_fraction:.0%} of the ratios are clipped (normal: below {CLIP_FRACTION_HIGH:.0%}). "
            "Lower learning_rate or n_epochs, or give a target_kl",
        ),
        (
            "KLHigh",
            kl > KL_HIGH,
            f"KL is {kl:.3g} nats after one update (normal: below {KL_HIGH}). "
            "Lower learning_rate or n_epochs, or give a target_kl",
        ),
        (
            "EntropyCollapse",
            entropy < ENTROPY_LOW,
            f"entropy is {entropy:.3g} nats: the policy no longer explores. Raise ent_coef or temperature",
        ),
        (
            "ValueDivergence",
            number["value_gap"] > VALUE_GAP_HIGH,
            f"the values' error is {number['value_gap']:.3g} times the largest return possible. "
            "Lower the value learning rate (policy_kwargs value_lr) or vf_coef, or set clip_range_vf",
        ),
        (
            "GradientNotFinite",
            skipped_steps > 0,
            f"{skipped_steps:g} optimiser step(s) skipped because the gradient was not finite. "
            "Lower learning_rate, or train in float32",
        ),
        (
            "RatioNotOne",
            ratio_gap > ratio_gap_high,
            f"before the first step a probability ratio is off 1 by {ratio_gap:.3g} (normal: below "
            f"{ratio_gap_high:.2g} in {'half' if half_precision else 'single'} precision): collecting and "
            "training score decisions differently. Set recompute_logprobs=True, or train in float32",
        ),
    )
    return {name: text for name, bad, text in checks if bad}


def warn_of_faults(numbers: Mapping[str, float], counts: Counter[str]) -> list[str]:
    """Warn of `faults` at their 1st, 2nd, 4th, 8th ... occurrence, so that a long run is not flooded.

    Return the names of all; `counts`, of the run, counts them.
    """
    found = faults(numbers)
    counts.update(found.keys())
    for name, text in found.items():
        if counts[name] & (counts[name] - 1) == 0:
            again = f" (occurrence {counts[name]})" if counts[name] > 1 else ""
            warnings.warn(f"{name}: {text}{again}.", TrainingWarning, stacklevel=2)
    return list(found)
