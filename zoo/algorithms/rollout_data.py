"""The rollout in the buffer as minibatches: of chunk policies, and of plain Stable-Baselines3 policies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from torch import Tensor

from zoo.algorithms.reference_policy import Reference
from zoo.config.algorithm_configs import LogprobLevel
from zoo.distributed.learner import Learner
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.buffer import ChunkRolloutBuffer
from zoo.rollout.minibatches import Columns, MinibatchShard, minibatch_shards, split_evenly
from zoo.rollout.types import MicroBatch, Minibatch


class RolloutData(Protocol):
    """The data of one update."""

    def minibatches(self, epoch: int) -> Iterator[Iterable[MicroBatch]]:
        """One pass over the rollout, shuffled by `epoch`; equally many minibatches and micro-batches on every rank."""

    def recompute_log_probs(self, learner: Learner, epoch: int) -> None:
        """Replace the rollout's log-probabilities by those of the training path."""

    def compute_ref_log_probs(self, reference: Reference) -> None:
        """Write the reference policy's log-probabilities of the rollout."""

    def values_and_returns(self) -> tuple[Tensor, Tensor]:
        """The rollout's values and their targets, flat."""


@dataclass(frozen=True, kw_only=True)
class ChunkRolloutData:
    """Decisions of a chunk policy; minibatches are drawn over all ranks."""

    buffer: ChunkRolloutBuffer
    process_group: ProcessGroup
    num_envs: int
    """Sub-environments of this rank."""
    batch_size: int
    """Decisions of a minibatch, all ranks together."""
    micro_batch_size: int | None
    """Decisions scored at once; None = whole minibatches."""
    level: LogprobLevel
    """Elements of a decision."""
    seed: int
    """The order of a pass follows from it and the pass's number."""
    device: torch.device
    """Where minibatches go."""
    masked: bool = False
    """Whether minibatches are cut from masked places, too."""
    off_policy: bool = False
    """Whether decisions may be of older weights than those the update begins with."""

    def minibatches(self, epoch: int) -> Iterator[Iterable[MicroBatch]]:
        for shard in self._shards(epoch):
            yield self._micro_batches(shard)

    def recompute_log_probs(self, learner: Learner, epoch: int) -> None:
        if self.off_policy:
            self.buffer.keep_behaviour_logprobs()
        # In the update's own micro-batches, equally many on every rank: all ranks score a sharded policy together.
        with torch.no_grad():
            for shard in self._shards(epoch):
                for index_B in shard.micro_batches(self.micro_batch_size):
                    logprob_BKA = learner.score(self._to_score(index_B), None)
                    if len(index_B):
                        self.buffer.replace_logprobs(index_B, logprob_BKA)

    def compute_ref_log_probs(self, reference: Reference) -> None:
        self.buffer.begin_reference()
        with torch.no_grad():
            for index_B in split_evenly(self.buffer.selected_indices(), self.micro_batch_size or self.batch_size):
                batch = self._to_score(index_B)
                self.buffer.write_reference(index_B, reference.evaluate(batch.obs, batch.choice).logprob_BKA)

    def values_and_returns(self) -> tuple[Tensor, Tensor]:
        buffer = self.buffer
        if buffer.step_value_TNK is not None and buffer.step_return_TNK is not None:
            valid_TNK = buffer.executed_steps()
            return buffer.step_value_TNK[valid_TNK], buffer.step_return_TNK[valid_TNK]
        valid_TN = buffer.executed_TN > 0
        return buffer.value_TN[valid_TN], buffer.return_TN[valid_TN]

    def _shards(self, epoch: int) -> Iterator[MinibatchShard]:
        """This rank's shards of one pass's minibatches."""
        group = self.process_group
        columns = Columns(num_ranks=group.size, rank=group.rank, num_envs=self.num_envs)
        selected_TC = columns.in_env_order(group.all_gather(self.buffer.selected()))
        rng = np.random.default_rng([self.seed, epoch])
        return minibatch_shards(selected_TC, columns, self.batch_size, rng, masked=self.masked)

    def _micro_batches(self, shard: MinibatchShard) -> Iterator[MicroBatch]:
        indices = shard.micro_batches(self.micro_batch_size)
        for number, index_B in enumerate(indices, 1):
            yield MicroBatch(self._to_score(index_B), weight=shard.weight(index_B), last=number == len(indices))

    def _to_score(self, index_B: Tensor) -> Minibatch:
        """The decisions at `index_B`, or the buffer's first where there are none, as other ranks wait for a score."""
        scored_B = index_B if len(index_B) else torch.zeros(1, dtype=torch.int64)
        return self.buffer.minibatch(scored_B, self.level, self.device)


@dataclass(frozen=True, kw_only=True)
class PlainRolloutData:
    """Steps of a plain policy in Stable-Baselines3's own buffer; advantages are normalised over each minibatch."""

    buffer: RolloutBuffer | DictRolloutBuffer
    action_space: spaces.Space
    batch_size: int
    micro_batch_size: int | None
    normalize_advantage: bool

    def minibatches(self, epoch: int) -> Iterator[Iterable[MicroBatch]]:
        """See `RolloutData`; the order is Stable-Baselines3's, of NumPy's global generator."""
        discrete = isinstance(self.action_space, spaces.Discrete)
        for data in self.buffer.get(self.batch_size):
            advantage_B = data.advantages
            if self.normalize_advantage and len(advantage_B) > 1:
                advantage_B = (advantage_B - advantage_B.mean()) / (advantage_B.std() + 1e-8)
            batch = Minibatch(
                obs=data.observations,
                choice=data.actions.long().flatten() if discrete else data.actions,
                executed_B=None,
                old_logprob_BL=data.old_log_prob[:, None],
                advantage_BL=advantage_B[:, None],
                return_BU=data.returns[:, None],
                old_value_BU=data.old_values[:, None],
                mask_BL=None,
                weight_BL=None,
            )
            yield batch.micro_batches(self.micro_batch_size)

    def recompute_log_probs(self, learner: Learner, epoch: int) -> None:
        """Nothing: Stable-Baselines3 does not either."""

    def compute_ref_log_probs(self, reference: Reference) -> None:
        raise AssertionError("kl_coef is refused for plain policies")

    def values_and_returns(self) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.buffer.values).flatten(), torch.from_numpy(self.buffer.returns).flatten()
