"""The order in which an update goes over the decisions of all ranks, and the shard of them this rank scores.

The order follows from the mask of decisions that the update uses and a random generator, both the same on every
rank. It is spread evenly: each minibatch takes nearly as many decisions from one column as from another, so
ranks, which hold equally many columns, score nearly equally many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


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
    """W."""

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
    """W."""
    rank: int
    """This rank."""
    num_envs: int
    """Sub-environments of each rank."""

    def in_env_order(self, by_rank_TC: Tensor) -> Tensor:
        """Columns ordered by (rank, round, env) to (round, rank, env), the order that one process would have."""
        rows = len(by_rank_TC)
        by_rank = by_rank_TC.reshape(rows, self.num_ranks, -1, self.num_envs)
        return by_rank.transpose(1, 2).reshape(rows, -1)

    def rank_of(self, column_B: Tensor) -> Tensor:
        """The rank that holds each column."""
        return column_B // self.num_envs % self.num_ranks

    def own_column(self, column_B: Tensor) -> Tensor:
        """Place of each column in its rank's buffer."""
        return column_B // (self.num_envs * self.num_ranks) * self.num_envs + column_B % self.num_envs


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
    total_columns = selected_TC.shape[1]
    own_columns = total_columns // columns.num_ranks
    cut_from_TC = torch.ones_like(selected_TC) if masked and selected_TC.any() else selected_TC
    for place_B in split_evenly(even_order(cut_from_TC, rng), batch_size):
        index_B = place_B[selected_TC.flatten()[place_B]]
        row_B, column_B = index_B // total_columns, index_B % total_columns
        rank_B = columns.rank_of(column_B)
        own_B = rank_B == columns.rank
        yield MinibatchShard(
            index_B=row_B[own_B] * own_columns + columns.own_column(column_B[own_B]),
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
