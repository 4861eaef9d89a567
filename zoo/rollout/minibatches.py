"""In which order an update goes over the decisions of all ranks, and which of them this rank scores.

The order follows from the mask of decisions that take part and a random generator, both the same on every
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
class Piece:
    """This rank's part of one minibatch."""

    index_B: Tensor
    """Flat indices (row * columns + column) into this rank's buffer, int64; may be empty."""
    size: int
    """Decisions of the minibatch on all ranks."""
    most: int
    """Decisions of it on the rank that has the most."""
    num_ranks: int
    """W."""

    def parts(self, most: int | None) -> list[Tensor]:
        """Its indices in parts of at most `most` (None: one part): as many parts on every rank, some maybe empty."""
        return list(torch.tensor_split(self.index_B, 1 if most is None else -(-self.most // most)))

    def share(self, part_B: Tensor) -> float:
        """Of one of the `parts`, as `zoo.rollout.types.Part.share` has it."""
        return len(part_B) / self.size * self.num_ranks


@dataclass(frozen=True)
class Columns:
    """How the buffers' columns (slot, round) of all ranks lie side by side."""

    num_ranks: int
    """W."""
    rank: int
    """This rank."""
    slots: int
    """Slots of each rank."""

    def in_slot_order(self, side_by_side_TC: Tensor) -> Tensor:
        """Columns ordered by (rank, round, slot) to (round, rank, slot), the order that one process would have."""
        rows = len(side_by_side_TC)
        by_rank = side_by_side_TC.reshape(rows, self.num_ranks, -1, self.slots)
        return by_rank.transpose(1, 2).reshape(rows, -1)

    def rank_of(self, column_B: Tensor) -> Tensor:
        """Which rank holds each column."""
        return column_B // self.slots % self.num_ranks

    def own_column(self, column_B: Tensor) -> Tensor:
        """Where in its rank's buffer each column is."""
        return column_B // (self.slots * self.num_ranks) * self.slots + column_B % self.slots


def even_order(taking_TC: Tensor, rng: np.random.Generator) -> Tensor:
    """Flat indices of the decisions that take part (bool `[T, C]`), shuffled and spread evenly over columns, `[M]`.

    A decision's place is (its rank in a random order of its column + one number in [0, 1) of that column) over the
    column's count: any stretch of the order holds nearly the same share of every column.
    """
    taking = taking_TC.numpy()
    drawn = np.where(taking, rng.random(taking.shape), np.inf)
    place = np.argsort(np.argsort(drawn, axis=0), axis=0)
    key = (place + rng.random(taking.shape[1])) / np.maximum(taking.sum(axis=0), 1)
    chosen = np.flatnonzero(taking)
    return torch.from_numpy(chosen[np.argsort(key.ravel()[chosen], kind="stable")])


def pieces(taking_TC: Tensor, columns: Columns, batch_size: int, rng: np.random.Generator) -> Iterator[Piece]:
    """One pass: minibatches of at most `batch_size` decisions, sizes differing by at most one.

    `taking_TC` is the mask of all ranks in slot order. So no remainder of a few decisions takes a step as large as a
    full minibatch's.
    """
    total_columns = taking_TC.shape[1]
    own_columns = total_columns // columns.num_ranks
    for index_B in in_parts(even_order(taking_TC, rng), batch_size):
        row_B, column_B = index_B // total_columns, index_B % total_columns
        rank_B = columns.rank_of(column_B)
        own_B = rank_B == columns.rank
        yield Piece(
            index_B=row_B[own_B] * own_columns + columns.own_column(column_B[own_B]),
            size=len(index_B),
            most=int(torch.bincount(rank_B).max()),
            num_ranks=columns.num_ranks,
        )


def in_parts(index_M: Tensor, batch_size: int) -> list[Tensor]:
    """`ceil(M / batch_size)` parts whose sizes differ by at most one."""
    return list(torch.tensor_split(index_M, -(-len(index_M) // batch_size))) if len(index_M) else []
