"""The rollout as minibatches: the order in which an update goes over all ranks' decisions, and this rank's shards.

The order follows from the mask of decisions that the update uses and a random generator, both the same on every
rank. It is spread evenly: each minibatch takes nearly as many decisions from one column as from another, so
ranks, which hold equally many columns, score nearly equally many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zoo.config.algorithm_configs import LogprobLevel
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.buffer import ChunkRolloutBuffer, Minibatch


@dataclass(frozen=True)
class MicroBatch:
    """Decisions of one minibatch that are scored at once."""

    batch: Minibatch
    weight: float
    """The minibatch's loss, a mean over its decisions, is the mean over ranks of the sum of weight x this loss."""
    last: bool
    """Whether it is this rank's last micro-batch of the minibatch."""


@dataclass(frozen=True, kw_only=True)
class RolloutData:
    """The decisions of one update; minibatches are drawn over all ranks."""

    buffer: ChunkRolloutBuffer
    process_group: ProcessGroup
    num_envs: int
    """Sub-environments of this rank."""
    batch_size: int
    """Decisions of a minibatch, all ranks together."""
    micro_batch_size: int | None
    """Decisions scored at once; None = whole minibatches."""
    level: LogprobLevel
    seed: int
    """The order of a pass follows from it and the pass's number."""
    device: torch.device
    masked: bool = False
    """Whether minibatches are cut from masked places, too."""

    def minibatches(self, epoch: int) -> Iterator[Iterable[MicroBatch]]:
        """Yield the minibatches of a pass, shuffled by `epoch`; equally many, in as many parts, on every rank."""
        for shard in self._shards(epoch):
            yield self._micro_batches(shard)

    def recompute_log_probs(self, score: Callable[[Minibatch], Tensor], epoch: int) -> None:
        """Replace the log-probabilities by those of `score`, the training path."""
        # In the update's own micro-batches, equally many on every rank: all ranks score a sharded policy together.
        with torch.no_grad():
            for shard in self._shards(epoch):
                for index_B in shard.micro_batches(self.micro_batch_size):
                    logprob_BKA = score(self._to_score(index_B))
                    if len(index_B):
                        self.buffer.replace_logprobs(index_B, logprob_BKA)

    def compute_ref_log_probs(self, score: Callable[[Minibatch], Tensor]) -> None:
        """Write the log-probabilities under the reference policy."""
        self.buffer.begin_reference()
        with torch.no_grad():
            for index_B in split_evenly(self.buffer.selected_indices(), self.micro_batch_size or self.batch_size):
                self.buffer.write_reference(index_B, score(self._to_score(index_B)))

    def values_and_returns(self) -> tuple[Tensor, Tensor]:
        """Return the values and their targets, flat."""
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


@dataclass(frozen=True)
class MinibatchShard:
    """The decisions of one minibatch that this rank scores."""

    index_B: Tensor
    """Flat indices (row * columns + column) into this rank's buffer, int64; may be empty."""
    size: int
    """Decisions of the minibatch on all ranks, masked ones included."""
    most: int
    """Decisions of it on the rank that scores the most."""
    num_ranks: int

    def micro_batches(self, most: int | None) -> list[Tensor]:
        """Indices in micro-batches of at most `most` (None: one); equally many on every rank, some maybe empty."""
        return list(torch.tensor_split(self.index_B, 1 if most is None else max(1, -(-self.most // most))))

    def weight(self, index_B: Tensor) -> float:
        """`MicroBatch.weight` of one of the `micro_batches`."""
        return len(index_B) / self.size * self.num_ranks


@dataclass(frozen=True)
class Columns:
    """The order of the buffers' columns (round, sub-environment) of all ranks."""

    num_ranks: int
    rank: int
    num_envs: int
    """Sub-environments of each rank."""

    def in_env_order(self, by_rank_TC: Tensor) -> Tensor:
        """Columns ordered by (rank, round, env) to (round, rank, env), the order that one process would have."""
        rows = len(by_rank_TC)
        by_rank = by_rank_TC.reshape(rows, self.num_ranks, -1, self.num_envs)
        return by_rank.transpose(1, 2).reshape(rows, -1)


def even_order(selected_TC: Tensor, rng: np.random.Generator) -> Tensor:
    """Flat indices of the selected decisions (bool `[T, C]`), shuffled and spread evenly over columns, `[M]`.

    A decision's place is (its rank in a random order of its column + one number in [0, 1) of that column) over the
    column's count: any stretch of the order holds nearly the same share of every column.
    """
    selected = selected_TC.numpy()
    drawn = np.where(selected, rng.random(selected.shape), np.inf)
    place = np.argsort(np.argsort(drawn, axis=0), axis=0)
    key = (place + rng.random(selected.shape[1])) / np.maximum(selected.sum(axis=0), 1)
    indices = np.flatnonzero(selected)
    return torch.from_numpy(indices[np.argsort(key.ravel()[indices], kind="stable")])


def minibatch_shards(
    selected_TC: Tensor, columns: Columns, batch_size: int, rng: np.random.Generator, *, masked: bool = False
) -> Iterator[MinibatchShard]:
    """One pass: minibatches of at most `batch_size` decisions; `selected_TC` is the mask of all ranks in env order.

    Sizes differ by at most one, so that no remainder of a few decisions takes a step as large as a full minibatch's.
    With `masked` they are cut from all T x C places, unless none is selected: always equally many minibatches, whose
    masked places count in `size` and are not scored.
    """
    num_envs, total_columns = columns.num_envs, selected_TC.shape[1]
    cut_from_TC = torch.ones_like(selected_TC) if masked and selected_TC.any() else selected_TC
    for place_B in split_evenly(even_order(cut_from_TC, rng), batch_size):
        index_B = place_B[selected_TC.flatten()[place_B]]
        row_B, column_B = index_B // total_columns, index_B % total_columns
        slot_B, env_B = column_B // num_envs, column_B % num_envs
        round_B, rank_B = slot_B // columns.num_ranks, slot_B % columns.num_ranks
        own_column_B = round_B * num_envs + env_B
        own_B = rank_B == columns.rank
        yield MinibatchShard(
            index_B=(row_B * (total_columns // columns.num_ranks) + own_column_B)[own_B],
            size=len(place_B),
            most=int(torch.bincount(rank_B, minlength=1).max()),
            num_ranks=columns.num_ranks,
        )


def split_evenly(index_M: Tensor, batch_size: int) -> list[Tensor]:
    """`ceil(M / batch_size)` pieces whose sizes differ by at most one."""
    return list(torch.tensor_split(index_M, -(-len(index_M) // batch_size))) if len(index_M) else []


def columns_of(envs: range, held: range, rounds: int) -> Tensor:
    """Columns (round, sub-environment) of `envs` in the buffer of a rank that holds `held`, int64 `[rounds * n]`."""
    env_n = torch.arange(envs.start - held.start, envs.stop - held.start)
    return (torch.arange(rounds)[:, None] * len(held) + env_n).flatten()
