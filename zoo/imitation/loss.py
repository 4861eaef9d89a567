"""The loss of imitation, for either kind of head, and its gradient over all ranks.

Supervised fine-tuning (`zoo.training.sft`) minimises it alone. PPO and GRPO add it, times bc_coef, to every optimiser
step of the policy, on a minibatch of demonstrations (`DemonstrationsLoss`), as DAPG adds the gradient of the
demonstrations' log-probabilities (Rajeswaran et al. 2018, arXiv:1709.10087, eq. 4). There its weight falls with the
iterations, here it is constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_gym.specs import Benchmark
from vla_policies.actions.flow import matching_times
from vla_policies.actions.noise import TORCH_NOISE, Noise, SlotNoise
from vla_policies.actions.sampling import Sampling
from vla_policies.flow_backbone import FlowBackbone
from zoo.config.batch_plan import check_dealing
from zoo.demonstrations.lerobot_reader import read_dataset
from zoo.distributed.learner import Learner, Scorer
from zoo.distributed.process_group import ProcessGroup, own_block
from zoo.imitation.frames import Frames, batches, fitting, frames_of

_STREAM = 1
"""Keeps what is drawn here apart from what a rollout of the same seed draws, whose keys have a 0 in its place."""


def imitation_loss(policy: Any, batch: Frames, noise: Noise = TORCH_NOISE, *, privileged_coef: float = 0.0) -> Tensor:
    """Return the mean over the expert's actions, and their dims, each times its frame's weight.

    A flow policy learns all H actions that it predicts at once, of which it plays the first, as openpi and RLinf do.

    `noise` is what flow matching draws from. `privileged_coef` times the error of the policy's prediction of the
    frames' privileged vectors is added, see `PrivilegedHead.error`.
    """
    backbone = policy.backbone
    inputs = backbone.prepare(batch.obs)
    if isinstance(backbone, FlowBackbone):
        action_BHD = backbone.from_env(batch.action_BKA, inputs)
        noise_BHD = noise.normal(*action_BHD.shape, device=action_BHD.device)
        time_B = matching_times(noise.uniform(len(batch), device=action_BHD.device))
        error_BHD = backbone.matching_loss(inputs, action_BHD, noise_BHD, time_B)
        chunk, dims = batch.action_BKA.shape[1:]
        return _mean(error_BHD[:, :chunk, :dims], batch)
    # Whatever temperature a policy acts with, imitation is of the plain probabilities.
    scored = backbone.evaluate(inputs, backbone.record_of(batch.action_BKA), Sampling())
    loss = _mean(-scored.logprob_BKA, batch)
    if not privileged_coef:
        return loss
    error_B: Tensor = backbone.privileged.error(scored.privileged_BP, batch.privileged_BP)
    # A frame's error is that of each of its actions, so that the parts of a batch add up to it.
    return loss + privileged_coef * _mean(error_B[:, None, None].expand(-1, batch.mask_BK.shape[1], 1), batch)


def _mean(value_BKA: Tensor, batch: Frames) -> Tensor:
    mask_BK1 = batch.mask_BK[..., None].to(value_BKA.dtype)
    counted_BKA = value_BKA * mask_BK1
    if batch.weight_B is not None:
        counted_BKA = counted_BKA * batch.weight_B[:, None, None].to(value_BKA.dtype)
    return counted_BKA.sum() / (mask_BK1.sum() * value_BKA.shape[2])


class ImitationScorer(Scorer):
    """Loss of a batch of `Frames`, for a `Learner` that learns from nothing else."""

    def __init__(self, policy: Any, privileged_coef: float = 0.0) -> None:
        super().__init__(policy)
        self._privileged_coef = privileged_coef

    def forward(self, batch: Frames, noise: Noise) -> Tensor:
        """See `imitation_loss`: a scalar."""
        return imitation_loss(self.policy, batch, noise, privileged_coef=self._privileged_coef)


@dataclass(frozen=True, kw_only=True)
class FrameBatch:
    """The frames of one optimiser step, of all ranks."""

    frames: Frames
    """The whole dataset."""
    index_B: Tensor
    """Which of them, int64."""
    seed: int
    """Of the run."""
    step: tuple[int, int]
    """(update, step of it). What is drawn follows from seed, step and place, so neither ranks nor parts change it."""
    change: Callable[[Frames, Noise], Frames] = lambda frames, noise: frames
    """Transformation of a part's frames before they are learned."""

    def part(self, place_P: Tensor, device: torch.device) -> tuple[Frames, Noise]:
        """Return the frames at some places of the batch, on `device`, and the noise of their losses."""
        noise = SlotNoise(self.seed, self.step, place_P.numpy())
        return self.change(self.frames.pick(self.index_B[place_P], device), noise), noise


def add_gradients(
    learner: Learner,
    batch: FrameBatch,
    process_group: ProcessGroup,
    micro_batch_size: int | None,
    *,
    coef: float = 1.0,
    last: bool = True,
) -> float:
    """Add `coef` times the gradient of the batch's loss; return this rank's share of that loss, without `coef`.

    This rank scores its block of the batch, at most `micro_batch_size` frames at once (None: all). `last`: no other
    gradient follows before the step, so that ranks exchange theirs.
    """
    size = len(batch.index_B)
    own_P = torch.arange(size)[own_block(size, process_group)]
    parts = own_P.split(micro_batch_size or size)
    mask_BK = batch.frames.mask_BK[batch.index_B]
    device: Any = learner.acting.device
    losses = []
    for number, place_P in enumerate(parts, start=1):
        with learner.accumulate(last=last and number == len(parts)):
            # A part's loss is the mean over its actions; weighed so, all parts give the mean over the batch's.
            weight = float(mask_BK[place_P].sum() / mask_BK.sum())
            part_loss: Tensor = learner.score(*batch.part(place_P, device)) * weight
            # Gradients are averaged over ranks, not summed.
            learner.backward(part_loss * (coef * process_group.size))
        losses.append(part_loss.detach())
    # Read at the end: a GPU is waited for once.
    return float(sum(torch.stack(losses).tolist()))


@dataclass(frozen=True)
class DemonstrationsLoss:
    """Minibatches of demonstrations and their gradient; every rank that learns has all frames and takes its part.

    Which frames a step takes, and what their losses draw, follows from (seed, pass over the rollout, step of the
    pass), so a run that goes on needs nothing more of them.
    """

    frames: Frames
    coef: float
    batch_size: int
    """Frames of a step, all ranks together."""
    micro_batch_size: int | None
    """Frames scored at once; None = all."""
    seed: int
    process_group: ProcessGroup

    def __post_init__(self) -> None:
        check_dealing(self.batch_size, self.process_group.size, "batch_size of demonstrations")

    @cached_property
    def digests(self) -> tuple[str, str]:
        """Of the demonstrations, as checkpoints note them and as earlier versions did."""
        return self.frames.digests()

    def batches(self, epoch: int) -> Iterator[FrameBatch]:
        """Yield the minibatches of pass number `epoch`, without end: no frame twice before all have come."""
        seed = np.random.SeedSequence([self.seed, epoch, _STREAM]).generate_state(1)
        order = batches(len(self.frames), self.batch_size, torch.Generator().manual_seed(int(seed[0])))
        for number, index_B in enumerate(order):
            key = self.seed + (_STREAM << 64)
            yield FrameBatch(frames=self.frames, index_B=index_B, seed=key, step=(epoch, number))

    def add_gradients(self, learner: Learner, batch: FrameBatch) -> float:
        """Add a minibatch's gradient to those of a step that others follow; return this rank's share of its loss."""
        return add_gradients(learner, batch, self.process_group, self.micro_batch_size, coef=self.coef, last=False)


def read_frames(folders: Sequence[Path], policy: Any, benchmark: Benchmark) -> Frames:
    """Return the frames of all demonstrations in `folders`, each with the actions that the policy learns at once.

    Raise `BadValue` for datasets that do not fit each other or the policy, and for a policy without an imitation loss.
    """
    groups = {folder: read_dataset(folder) for folder in folders}
    return frames_of(fitting(groups, policy, benchmark), policy.backbone.imitated_steps)
