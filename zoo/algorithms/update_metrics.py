"""Numbers of one update, over the minibatches and ranks it was made with, and further ones of the log.

An update keeps each micro-batch's log-ratios (detached); everything is computed once at its end, as sums per
minibatch that ranks add up, so elements count the same wherever they were scored and the loop itself stays light.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from zoo.algorithms.losses import LossTerms, PPOLoss, clip_binds, dual_clip_binds, kl_k1, kl_k3, reference_kl
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.types import MicroBatch, Scores


class UpdateMetrics:
    """Numbers of one update, part by part; keeps neither observations nor graphs.

    The methods that return numbers ask every rank, so every rank must call them.
    """

    def __init__(self, objective: PPOLoss, process_group: ProcessGroup | None = None) -> None:
        self._objective = objective
        self._process_group = ProcessGroup() if process_group is None else process_group
        self._minibatches = 0
        self._epoch_began = 0
        self._place: list[int] = []
        self._terms: list[LossTerms] = []
        self._shares: list[float] = []
        self._log_ratio: list[Tensor] = []
        self._entropy: list[Tensor] = []
        self._advantage: list[Tensor] = []
        self._mask: list[Tensor] = []
        self._value: list[Tensor] = []
        self._old_value: list[Tensor] = []
        self._target: list[Tensor] = []
        self._ref_kl: list[Tensor] = []
        self._grad_norm: list[Tensor] = []
        self._sums: dict[str, Tensor] | None = None
        self.skipped_steps = 0

    def begin_epoch(self) -> None:
        """SB3's `train/approx_kl` is of the last epoch alone."""
        self._epoch_began = self._minibatches

    def begin_minibatch(self) -> None:
        """The parts that follow are of one minibatch more."""
        self._minibatches += 1

    def add(self, terms: LossTerms, scored: Scores, micro_batch: MicroBatch) -> None:
        """Take in a part of the minibatch; `terms` and `scored` have no graph any more."""
        if not micro_batch.weight:
            return
        batch = micro_batch.batch
        log_ratio_BL = (scored.logprob_BL - batch.old_logprob_BL).detach()
        self._place.append(self._minibatches - 1)
        self._terms.append(terms)
        self._shares.append(micro_batch.weight)
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

    def add_step(self, grad_norm: Tensor, *, stepped: bool) -> None:
        """Take one optimiser step in; `grad_norm` is the global norm before clipping."""
        if stepped:
            self._grad_norm.append(grad_norm)
        else:
            self.skipped_steps += 1

    @property
    def empty(self) -> bool:
        """No minibatch came, on any rank."""
        return not self._minibatches

    def latest_kl(self) -> float:
        """k3 estimate of the minibatch taken in last, nats per element."""
        kl, count = torch.zeros(2, dtype=torch.float64)
        for part in reversed(range(len(self._place))):
            if self._place[part] != self._minibatches - 1:
                break
            kl_BL = kl_k3(self._log_ratio[part])
            mask_BL = self._mask[part] if self._mask else torch.ones_like(kl_BL, dtype=torch.bool)
            kl += _chosen(kl_BL, mask_BL).sum().cpu()
            count += mask_BL.sum().cpu()
        kl, count = self._process_group.all_reduce_sum(torch.stack([kl, count]))
        return float(kl / count.clamp(min=1))

    def actor(self) -> dict[str, float]:
        """`train/actor/*` and `train/loss`."""
        sums, count = self._totals(), self._totals()["elements"].sum()
        means = {name: float(sums[name].sum() / count) for name in _PER_ELEMENT}
        values = {
            "train/loss": float(sums["loss"].mean()),
            "train/actor/policy_loss": float(sums["policy"].mean()),
            **{f"train/actor/{name}": means[name] for name in _PER_ELEMENT if name in _LOGGED},
            "train/actor/ratio_first": float(sums["ratio"][0] / sums["elements"][0]),
            "train/actor/ratio_first_gap": self._first_gap(),
            "train/actor/skipped_steps": float(self.skipped_steps),
        }
        if sums["ref_elements"].sum():
            values["train/actor/ref_kl"] = float(sums["ref_kl"].sum() / sums["ref_elements"].sum())
        if self._grad_norm:
            values["train/actor/grad_norm"] = float(torch.stack(self._grad_norm).double().mean())
        if self._objective.dual_clip is not None:
            values["train/actor/dual_clip_fraction"] = means["dual_clip_fraction"]
        return values

    def critic(self) -> dict[str, float]:
        """`train/critic/*`, the learning rate excepted."""
        sums = self._totals()
        return {
            "train/critic/value_loss": float(sums["value"].mean()),
            # 0 where values are not clipped.
            "train/critic/value_clip_ratio": float(sums["moved"].sum() / sums["values"].sum()),
            "train/critic/explained_variance": explained_variance(
                _joined(self._value), _joined(self._target), self._process_group
            ),
        }

    def as_sb3(self) -> dict[str, float]:
        """The keys of Stable-Baselines3's PPO, computed as it does: plain means over minibatches."""
        sums = self._totals()
        values = {
            "train/entropy_loss": -float(sums["entropy_bonus"].mean()),
            "train/policy_gradient_loss": float(sums["policy"].mean()),
            "train/approx_kl": float((sums["approx_kl_k3"] / sums["elements"])[self._epoch_began :].mean()),
            "train/clip_fraction": float((sums["outside"] / sums["elements"]).mean()),
            "train/loss": float(sums["loss"][-1]),
        }
        if self._objective.vf_coef:
            values["train/value_loss"] = float(sums["value"].mean())
        return values

    # Inside -----------------------------------------------------------------------------------------

    def _totals(self) -> dict[str, Tensor]:
        """Name -> sum of each minibatch over all ranks, float64 `[minibatches]`; the losses are means already."""
        if self._sums is None:
            own = torch.zeros(len(_SUMS), self._minibatches, dtype=torch.float64)
            if self._place:
                rows = self._part_sums().double().cpu()
                own.index_add_(1, torch.tensor(self._place), rows.T)
            whole = self._process_group.all_reduce_sum(own)
            whole[: len(_TERMS)] /= self._process_group.size
            self._sums = dict(zip(_SUMS, whole, strict=True))
        return self._sums

    def _part_sums(self) -> Tensor:
        """`[parts, len(_SUMS)]`: what every part adds, in the order of `_SUMS`."""
        low, high = self._objective.clip_low, self._objective.clip_high
        sizes = [len(one) for one in self._log_ratio]
        log_ratio_BL, advantage_BL = torch.cat(self._log_ratio), torch.cat(self._advantage)
        mask_BL = torch.cat(self._mask) if self._mask else torch.ones_like(log_ratio_BL, dtype=torch.bool)
        log_ratio_BL = _chosen(log_ratio_BL, mask_BL)
        ratio_BL = log_ratio_BL.exp()
        dual = self._objective.dual_clip
        capped_BL = (
            torch.zeros_like(ratio_BL)
            if dual is None
            else dual_clip_binds(ratio_BL, advantage_BL, dual_clip=dual, clip_low=low)
        )
        elements = [
            ratio_BL,
            (ratio_BL - 1).abs(),
            ratio_BL.clamp(1 - low, 1 + high),
            kl_k1(log_ratio_BL),
            kl_k3(log_ratio_BL),
            clip_binds(ratio_BL, advantage_BL, clip_low=low, clip_high=high),
            torch.cat(self._entropy),
            capped_BL,
            (ratio_BL - 1).abs() > low,
            mask_BL,
        ]
        summed = torch.stack([_chosen(one.float(), mask_BL).sum(dim=1) for one in elements], dim=1)
        per_part = torch.stack([one.sum(dim=0) for one in summed.double().split(sizes)])
        columns = [self._terms_of_parts(), per_part, *self._counts_of_parts(per_part.device)]
        return torch.cat(columns, dim=1)

    def _terms_of_parts(self) -> Tensor:
        """`[parts, 4]`: loss, policy, value and entropy, each by its part's share."""
        scalars = [
            one.detach()
            for terms in self._terms
            for one in (terms.loss, terms.policy, terms.value, terms.entropy)
        ]
        terms_P4 = torch.stack(scalars).double().unflatten(0, (-1, len(_TERMS)))
        return terms_P4 * torch.tensor(self._shares, device=terms_P4.device).double()[:, None]

    def _counts_of_parts(self, device: torch.device) -> list[Tensor]:
        """Four columns `[parts, 1]`: values that moved past the clip, values, reference KLs and how many."""
        clip, nothing = self._objective.clip_vf, torch.zeros(len(self._value), device=device).double()
        moved = nothing
        if clip is not None:
            # Counted before clamping: afterwards nothing ever exceeds the bound.
            pairs = zip(self._value, self._old_value, strict=True)
            moved = torch.stack([((value - old).abs() > clip).sum() for value, old in pairs]).double()
        values = torch.tensor([len(one) for one in self._value], device=device).double()
        ref_kl = ref_elements = nothing
        if self._ref_kl:
            ref_kl = torch.stack([one.sum() for one in self._ref_kl]).double()
            ref_elements = torch.tensor([one.numel() for one in self._ref_kl], device=device).double()
        return [one[:, None] for one in (moved, values, ref_kl, ref_elements)]

    def _first_gap(self) -> float:
        """Largest |ratio - 1| of the first minibatch."""
        gaps = [
            _chosen(
                log_ratio, self._mask[part] if self._mask else torch.ones_like(log_ratio, dtype=torch.bool)
            )
            .exp()
            .sub(1)
            .abs()
            .max()
            .cpu()
            for part, log_ratio in enumerate(self._log_ratio)
            if self._place[part] == 0
        ]
        return float(self._process_group.all_reduce_max(torch.stack([torch.tensor(0.0), *gaps]).max()))


_TERMS = ("loss", "policy", "value", "entropy_bonus")
_PER_ELEMENT = (
    "ratio",
    "ratio_abs",
    "clipped_ratio",
    "approx_kl",
    "approx_kl_k3",
    "clip_fraction",
    "entropy",
    "dual_clip_fraction",
    "outside",
)
_LOGGED = _PER_ELEMENT[:-2]
_SUMS = (*_TERMS, *_PER_ELEMENT, "elements", "moved", "values", "ref_kl", "ref_elements")


def explained_variance(value: Tensor, target: Tensor, process_group: ProcessGroup) -> float:
    """1 - Var(target - value) / Var(target) over the entries of every rank; nan where the targets are all alike."""
    _, spread = process_group.moments(target)
    _, error = process_group.moments(target - value)
    return 1.0 - (error / spread) ** 2 if spread else float("nan")


def _counted(value_BU: Tensor, weight_BU: Tensor | None) -> Tensor:
    return value_BU.flatten() if weight_BU is None else value_BU[weight_BU > 0]


def _chosen(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if parts else torch.zeros(0)


def rank_means(values: Mapping[str, Tensor], process_group: ProcessGroup) -> dict[str, float]:
    """Mean of each tensor's entries over all ranks; what has none is left out."""
    sums = process_group.all_reduce_sum(
        torch.tensor([[float(one.double().sum()), float(one.numel())] for one in values.values()]).double()
    )
    return {name: float(total / count) for name, (total, count) in zip(values, sums, strict=True) if count}


def advantage_range(advantage: Tensor, process_group: ProcessGroup) -> dict[str, float]:
    """`rollout/advantages_max` and `_min` over all ranks; empty where none has an entry."""
    own = torch.full((2,), -math.inf)
    if advantage.numel():
        own = torch.stack([advantage.max(), -advantage.min()])
    highest, lowest = process_group.all_reduce_max(own).tolist()
    return (
        {} if highest == -math.inf else {"rollout/advantages_max": highest, "rollout/advantages_min": -lowest}
    )


def learning_rates(optimizer: torch.optim.Optimizer) -> Mapping[str, float]:
    """`train/actor/lr` and, where the value head has a group of its own, `train/critic/lr`."""
    rates = {
        str(group.get("name", index)): float(group["lr"]) * float(group.get("lr_scale", 1.0))
        for index, group in enumerate(optimizer.param_groups)
    }
    actor = rates.get("backbone", next(iter(rates.values())))
    return {"train/actor/lr": actor, "train/critic/lr": rates.get("value_head", actor)}
