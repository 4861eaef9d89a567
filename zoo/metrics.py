"""What is logged, by name. Definitions follow the contract's section 6.

An update keeps each minibatch's log-ratios (detached); everything is computed once at its end, over all
of them, so minibatches count by the elements they hold and the loop itself stays light.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from stable_baselines3.common.utils import explained_variance
from torch import Tensor

from zoo.losses import clip_binds, dual_clip_binds, kl_k1, kl_k3, reference_kl
from zoo.objective import Objective, Terms
from zoo.records import Episode, Minibatch, Scored


class Tally:
    """Numbers of one update, minibatch by minibatch; keeps neither observations nor graphs."""

    def __init__(self) -> None:
        self._loss: list[Tensor] = []
        self._policy: list[Tensor] = []
        self._value_error: list[Tensor] = []
        self._entropy_bonus: list[Tensor] = []
        self._log_ratio: list[Tensor] = []
        self._entropy: list[Tensor] = []
        self._advantage: list[Tensor] = []
        self._mask: list[Tensor] = []
        self._value: list[Tensor] = []
        self._old_value: list[Tensor] = []
        self._target: list[Tensor] = []
        self._grad_norm: list[Tensor] = []
        self._ref_kl: list[Tensor] = []
        self._epoch_began = 0
        self.skipped_steps = 0

    def begin_epoch(self) -> None:
        """SB3's `train/approx_kl` is of the last epoch alone."""
        self._epoch_began = len(self._log_ratio)

    def add(self, terms: Terms, scored: Scored, batch: Minibatch) -> Tensor:
        """Take one minibatch in; returns the log-ratios of its elements, detached."""
        log_ratio_BL = (scored.logprob_BL - batch.old_logprob_BL).detach()
        self._loss.append(terms.loss.detach())
        self._policy.append(terms.policy)
        self._value_error.append(terms.value)
        self._entropy_bonus.append(terms.entropy)
        self._log_ratio.append(log_ratio_BL)
        self._entropy.append(scored.entropy_BL.detach())
        self._advantage.append(batch.advantage_BL.expand_as(log_ratio_BL))
        self._value.append(_counted(scored.value_BU.detach(), batch.value_weight_BU))
        self._old_value.append(_counted(batch.old_value_BU, batch.value_weight_BU))
        self._target.append(_counted(batch.return_BU, batch.value_weight_BU))
        if scored.token_logprob_BW is not None and batch.ref_logprob_BW is not None:
            kl_BW = reference_kl(scored.token_logprob_BW.detach(), batch.ref_logprob_BW)
            self._ref_kl.append(kl_BW[batch.token_mask_BW])
        if batch.mask_BL is not None:
            self._mask.append(batch.mask_BL)
        return log_ratio_BL

    def add_step(self, grad_norm: Tensor, *, stepped: bool) -> None:
        """Take one optimiser step in; `grad_norm` is the global norm before clipping."""
        if stepped:
            self._grad_norm.append(grad_norm)
        else:
            self.skipped_steps += 1

    @property
    def empty(self) -> bool:
        """No minibatch came."""
        return not self._loss

    def actor(self, objective: Objective) -> dict[str, float]:
        """`train/actor/*` and `train/loss`."""
        log_ratio, advantage = self._elements(self._log_ratio), self._elements(self._advantage)
        ratio = log_ratio.exp()
        first = self._elements(self._log_ratio[:1]).exp()
        low, high = objective.clip_low, objective.clip_high
        binds = clip_binds(ratio, advantage, clip_low=low, clip_high=high)
        values = {
            "train/loss": _mean(self._loss),
            "train/actor/policy_loss": _mean(self._policy),
            "train/actor/entropy": float(self._elements(self._entropy).mean()),
            "train/actor/ratio": float(ratio.mean()),
            "train/actor/ratio_abs": float((ratio - 1).abs().mean()),
            "train/actor/clipped_ratio": float(ratio.clamp(1 - low, 1 + high).mean()),
            "train/actor/approx_kl": float(kl_k1(log_ratio).mean()),
            "train/actor/approx_kl_k3": float(kl_k3(log_ratio).mean()),
            "train/actor/clip_fraction": float(binds.float().mean()),
            "train/actor/ratio_first": float(first.mean()),
            "train/actor/ratio_first_gap": float((first - 1).abs().max()),
            "train/actor/skipped_steps": float(self.skipped_steps),
        }
        if self._ref_kl:
            values["train/actor/ref_kl"] = float(torch.cat(self._ref_kl).mean())
        if self._grad_norm:
            values["train/actor/grad_norm"] = _mean(self._grad_norm)
        if objective.dual_clip is not None:
            capped = dual_clip_binds(ratio, advantage, dual_clip=objective.dual_clip, clip_low=low)
            values["train/actor/dual_clip_fraction"] = float(capped.float().mean())
        return values

    def critic(self, objective: Objective) -> dict[str, float]:
        """`train/critic/*`, the learning rate excepted."""
        value, target = torch.cat(self._value), torch.cat(self._target)
        values = {
            "train/critic/value_loss": _mean(self._value_error),
            "train/critic/explained_variance": float(explained_variance(_numpy(value), _numpy(target))),
        }
        if objective.clip_vf is not None:
            # Counted before clamping: afterwards nothing ever exceeds the bound.
            moved = (value - torch.cat(self._old_value)).abs() > objective.clip_vf
            values["train/critic/value_clip_ratio"] = float(moved.float().mean())
        return values

    def as_sb3(self, objective: Objective) -> dict[str, float]:
        """The keys of Stable-Baselines3's PPO, computed as it does: plain means over minibatches."""
        sizes = [len(one) for one in self._log_ratio]
        log_ratio = _numpy(torch.cat(self._log_ratio))
        kl = np.expm1(log_ratio) - log_ratio
        outside = np.abs(np.exp(log_ratio) - 1) > objective.clip_low
        mask = torch.cat(self._mask).cpu().numpy() if self._mask else np.ones_like(log_ratio)
        values = {
            "train/entropy_loss": -_mean(self._entropy_bonus),
            "train/policy_gradient_loss": _mean(self._policy),
            "train/approx_kl": float(np.mean(_means(kl, mask, sizes)[self._epoch_began :])),
            "train/clip_fraction": float(np.mean(_means(outside, mask, sizes))),
            "train/loss": float(self._loss[-1]),
        }
        if objective.vf_coef:
            values["train/value_loss"] = _mean(self._value_error)
        return values

    def _elements(self, parts: Sequence[Tensor]) -> Tensor:
        """The executed elements of the first minibatches, flat."""
        whole = torch.cat(list(parts))
        return whole[torch.cat(self._mask[: len(parts)])] if self._mask else whole.flatten()


class PhaseClock:
    """Seconds spent in named phases since the last reading."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time spent inside under `name`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - began

    def read(self, *, decisions: int, sim_steps: int) -> dict[str, float]:
        """`time/<phase>_seconds` and `_fraction` since the last reading, and speeds; starts anew."""
        now = time.perf_counter()
        total = max(now - self._began, 1e-9)
        values: dict[str, float] = {"time/iteration_seconds": total}
        for name, seconds in self._seconds.items():
            values[f"time/{name}_seconds"] = seconds
            values[f"time/{name}_fraction"] = seconds / total
        values["time/decisions_per_second"] = decisions / total
        values["time/sim_steps_per_second"] = sim_steps / total
        self._seconds = {}
        self._began = now
        return values


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """`env/*` and the headline `rollout/success_once`, over the episodes that ended in this rollout.

    With automatic resets short (successful) episodes end more often, so during PPO training this is
    optimistic; `eval/*` has each start state once.
    """
    if not episodes:
        return {}
    lengths = np.array([one.length for one in episodes], dtype=np.float64)
    returns = np.array([one.total_reward for one in episodes], dtype=np.float64)
    success_once = float(np.mean([one.success_once for one in episodes]))
    return {
        "rollout/success_once": success_once,
        "env/success_once": success_once,
        "env/success_at_end": float(np.mean([one.success_at_end for one in episodes])),
        "env/return": float(returns.mean()),
        "env/episode_len": float(lengths.mean()),
        "env/reward": float((returns / np.maximum(lengths, 1)).mean()),
        "env/num_trajectories": float(len(episodes)),
    }


def learning_rates(optimizer: torch.optim.Optimizer) -> Mapping[str, float]:
    """`train/actor/lr` and, where the value head has a group of its own, `train/critic/lr`."""
    rates = {
        str(group.get("name", index)): float(group["lr"]) * float(group.get("lr_scale", 1.0))
        for index, group in enumerate(optimizer.param_groups)
    }
    actor = rates.get("backbone", next(iter(rates.values())))
    return {"train/actor/lr": actor, "train/critic/lr": rates.get("value_head", actor)}


def _counted(value_BU: Tensor, weight_BU: Tensor | None) -> Tensor:
    return value_BU.flatten() if weight_BU is None else value_BU[weight_BU > 0]


def _mean(scalars: Sequence[Tensor]) -> float:
    return float(np.mean(_numpy(torch.stack([one.detach() for one in scalars]))))


def _means(values: np.ndarray, mask: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Mean of the unmasked elements of each consecutive block of rows."""
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    sums = np.add.reduceat((values * mask).sum(axis=1), starts)
    return np.asarray(sums / np.add.reduceat(mask.sum(axis=1), starts))


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()
