"""The rollout as minibatches: the order in which an update goes over all ranks' decisions, and this rank's shards.

The order follows from the mask of decisions that the update uses and a random generator, both the same on every
rank. It is spread evenly: each minibatch takes nearly as many decisions from one column as from another, so
ranks, which hold equally many columns, score nearly equally many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zoo.config.algorithm_configs import LogprobLevel
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.buffer import ChunkRolloutBuffer, Minibatch

Part = tuple[Tensor, float]
"""Flat indices (row * columns + column) into this rank's buffer, maybe none, and their `MicroBatch.weight`."""


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
        return map(self._micro_batches, self._shards(epoch))

    def recompute_log_probs(self, score: Callable[[Minibatch], Tensor], epoch: int) -> None:
        """Replace the log-probabilities by those of `score`, the training path."""
        # In the update's own micro-batches, equally many on every rank: all ranks score a sharded policy together.
        with torch.no_grad():
            for index_B, _ in (part for parts in self._shards(epoch) for part in parts):
                logprob_BKA = score(self._to_score(index_B)).float().cpu()
                self.buffer.logprob_TNKA.flatten(0, 1)[index_B] = logprob_BKA[: len(index_B)]

    def compute_ref_log_probs(self, score: Callable[[Minibatch], Tensor]) -> None:
        """Write the log-probabilities under the reference policy."""
        # A rank may have none to write.
        ref_logprob_TNKA = self.buffer.ref_logprob_TNKA = torch.zeros_like(self.buffer.logprob_TNKA)
        with torch.no_grad():
            for index_B in split_evenly(self.buffer.selected_indices(), self.micro_batch_size or self.batch_size):
                ref_logprob_TNKA.flatten(0, 1)[index_B] = score(self._to_score(index_B)).float().cpu()

    def _shards(self, epoch: int) -> Iterator[list[Part]]:
        group = self.process_group
        rng = np.random.default_rng([self.seed, epoch])
        return minibatch_shards(
            group.all_gather(self.buffer.selected()),
            self.batch_size,
            rng,
            num_envs=self.num_envs,
            rank=group.rank,
            num_ranks=group.size,
            micro_batch_size=self.micro_batch_size,
            masked=self.masked,
        )

    def _micro_batches(self, parts: Sequence[Part]) -> Iterator[MicroBatch]:
        for number, (index_B, weight) in enumerate(parts, 1):
            yield MicroBatch(self._to_score(index_B), weight, last=number == len(parts))

    def _to_score(self, index_B: Tensor) -> Minibatch:
        """The decisions at `index_B`, or the buffer's first where there are none, as other ranks wait for a score."""
        scored_B = index_B if len(index_B) else torch.zeros(1, dtype=torch.int64)
        return self.buffer.minibatch(scored_B, self.level, self.device)


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


def env_order(num_columns: int, num_envs: int, num_ranks: int) -> Tensor:
    """Columns (rank, round, env) of all ranks in the order (round, rank, env) of one process, int64 `[C]`."""
    return torch.arange(num_columns).reshape(num_ranks, -1, num_envs).transpose(0, 1).flatten()


def minibatch_shards(
    selected_TC: Tensor,
    batch_size: int,
    rng: np.random.Generator,
    *,
    num_envs: int,
    rank: int = 0,
    num_ranks: int = 1,
    micro_batch_size: int | None = None,
    masked: bool = False,
) -> Iterator[list[Part]]:
    """One pass: of each minibatch of at most `batch_size` decisions the parts that `rank` scores.

    `selected_TC` is the mask of all ranks, one after the other. Minibatches differ by at most one decision, so that no
    remainder of a few takes a step as large as a full minibatch's. With `masked` they are cut from all T x C places,
    unless none is selected: always equally many minibatches, whose masked places count and are not scored. Parts have
    at most `micro_batch_size` decisions (None: one part) and are equally many on every rank.
    """
    own_columns, column_C = selected_TC.shape[1] // num_ranks, env_order(selected_TC.shape[1], num_envs, num_ranks)
    selected_TC = selected_TC[:, column_C]
    cut_from_TC = torch.ones_like(selected_TC) if masked and selected_TC.any() else selected_TC
    for place_B in split_evenly(even_order(cut_from_TC, rng), batch_size):
        index_B = place_B[selected_TC.flatten()[place_B]]
        row_B, column_B = index_B // len(column_C), column_C[index_B % len(column_C)]
        rank_B = column_B // own_columns
        most = int(torch.bincount(rank_B, minlength=1).max())
        own_index_B = (row_B * own_columns + column_B % own_columns)[rank_B == rank]
        parts = own_index_B.tensor_split(1 if micro_batch_size is None else max(1, -(-most // micro_batch_size)))
        yield [(part_B, len(part_B) / len(place_B) * num_ranks) for part_B in parts]


def split_evenly(index_M: Tensor, batch_size: int) -> list[Tensor]:
    """`ceil(M / batch_size)` pieces whose sizes differ by at most one."""
    return list(torch.tensor_split(index_M, -(-len(index_M) // batch_size))) if len(index_M) else []


def columns_of(envs: range, held: range, rounds: int) -> Tensor:
    """Columns (round, sub-environment) of `envs` in the buffer of a rank that holds `held`, int64 `[rounds * n]`."""
    env_n = torch.arange(envs.start - held.start, envs.stop - held.start)
    return (torch.arange(rounds)[:, None] * len(held) + env_n).flatten()
