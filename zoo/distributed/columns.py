"""Who gets which columns of a rollout: slots are dealt in equal adjacent blocks, to collect and again to learn. Pure.

A buffer's columns are (round, slot), slots of one rank; see `zoo.rollout.minibatches`.
"""

from __future__ import annotations

import torch
from torch import Tensor


def block(place: int, count: int, num_envs: int) -> range:
    """Slots (of all `num_envs`) of rank `place` among `count`."""
    return range(place * num_envs // count, (place + 1) * num_envs // count)


def overlap(one: range, other: range) -> range:
    """Slots that both blocks hold; may be empty."""
    first = max(one.start, other.start)
    return range(first, max(first, min(one.stop, other.stop)))


def columns_of(part: range, held: range, rounds: int) -> Tensor:
    """Columns of the slots `part` in the buffer of a rank that holds the slots `held`, int64 `[rounds * len(part)]`."""
    slots = torch.arange(part.start - held.start, part.stop - held.start)
    return (torch.arange(rounds)[:, None] * len(held) + slots).flatten()
