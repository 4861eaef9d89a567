"""The behaviour-cloning anchor: demonstrations that PPO and GRPO imitate beside their own loss.

Every optimiser step of the policy minimises its loss + bc_coef * the loss of imitation, of a minibatch of
demonstrations that has a size of its own. Rajeswaran et al. 2018 (DAPG, arXiv:1709.10087, eq. 4) add the gradient of
the demonstrations' log-probabilities so; there its weight falls with the iterations, here it is constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from vla_gym.errors import BadValue
from vla_gym.specs import Benchmark
from vla_policies import VLAPolicy
from zoo.algorithms.demonstration_frames import (
    Frames,
    batches,
    check_rate,
    fitting,
    frames_of,
)
from zoo.algorithms.imitation_step import FrameBatch, add_gradients
from zoo.algorithms.learner import Learner
from zoo.config.batch_plan import check_dealing
from zoo.demonstrations.lerobot_reader import read_dataset
from zoo.distributed.process_group import ProcessGroup

_STREAM = 1
"""Keeps what is drawn here apart from what a rollout of the same seed draws, whose keys have a 0 in its place."""


class BCAnchor:
    """Minibatches of demonstrations and their gradient; every rank that learns has all frames and takes its part.

    Which frames a step takes, and what their losses draw, follows from (seed, pass over the rollout, step of the
    pass), so a run that goes on needs nothing more of them.
    """

    def __init__(
        self,
        frames: Frames,
        *,
        coef: float,
        batch_size: int,
        micro_batch_size: int | None,
        seed: int,
        process_group: ProcessGroup,
    ) -> None:
        """`batch_size` counts frames of a step, all ranks together; `micro_batch_size` those scored at once."""
        check_dealing(batch_size, process_group.size, "bc_batch_size")
        self.frames = frames
        self.digests = frames.digests()
        """Of the demonstrations, as checkpoints note them and as earlier versions did."""
        self._coef = coef
        self._batch_size = batch_size
        self._micro_batch_size = micro_batch_size
        self._seed = seed
        self._process_group = process_group

    def batches(self, epoch: int) -> Iterator[FrameBatch]:
        """The minibatches of pass number `epoch` of the run, without end: no frame twice before all have come."""
        seed = np.random.SeedSequence([self._seed, epoch, _STREAM]).generate_state(1)
        order = batches(len(self.frames), self._batch_size, torch.Generator().manual_seed(int(seed[0])))
        for number, index_B in enumerate(order):
            key = self._seed + (_STREAM << 64)
            yield FrameBatch(frames=self.frames, index_B=index_B, seed=key, step=(epoch, number))

    def add_gradients(self, learner: Learner, batch: FrameBatch) -> float:
        """Add a minibatch's gradient to those of a step that others follow; return this rank's share of its loss."""
        return add_gradients(learner, batch, self._process_group, self._micro_batch_size, coef=self._coef, last=False)


def read_frames(folders: Sequence[Path], policy: object, benchmark: Benchmark | None, chunk: int) -> Frames:
    """The frames of all demonstrations in `folders`, with chunks of K = `chunk` actions.

    Raises `BadValue` for datasets that do not fit each other or the policy, and for a policy without an imitation loss.
    """
    if not isinstance(policy, VLAPolicy):
        raise BadValue(f"bc_coef is for 'VLAPolicy', which has a loss of imitation; got {type(policy).__name__}")
    groups = {folder: read_dataset(folder) for folder in folders}
    if benchmark is not None:
        for folder in groups:
            check_rate(folder, benchmark)
    return frames_of(fitting(groups, policy), chunk)
