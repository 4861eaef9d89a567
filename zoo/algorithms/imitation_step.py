"""The gradient of imitation for one optimiser step: its frames, in parts, over all ranks.

`zoo.imitation.sft` takes steps of it alone, `zoo.algorithms.bc_anchor` adds it to the steps of PPO and GRPO.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vla_policies.actions.noise import Noise, SlotNoise
from zoo.algorithms.demonstration_frames import Frames
from zoo.algorithms.imitation_loss import imitation_loss
from zoo.algorithms.learner import Learner, Scorer
from zoo.distributed.process_group import ProcessGroup, own_block


class ImitationScorer(Scorer):
    """Loss of a batch of `Frames`, what a `Learner` differentiates that learns from nothing else."""

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
    """What is done to a part's frames before they are learned."""

    def part(self, place_P: Tensor, device: torch.device) -> tuple[Frames, Noise]:
        """The frames at some places of the batch, on `device`, and what their losses draw from."""
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
