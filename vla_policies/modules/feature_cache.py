"""Cache of a frozen encoder's outputs, kept from a decision for the epochs of its update.

Acting, bootstrapping and every epoch of an update then use the same numbers; dropped rows are computed again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import inf

import torch
from torch import Tensor

from vla_gym.errors import BadValue

GIB = 2**30

Row = tuple[Tensor, ...]
"""The encoder's output for one observation."""


def check_gib(gib: float) -> None:
    """Raise unless `gib`, the setting `cache_features`, is a size."""
    if not 0 <= gib < inf:
        raise BadValue(f"cache_features must be GiB >= 0, with 0 for none, got {gib}")


class FeatureCache:
    """Rows by key, at most `max_bytes` of them; least recently used ones are dropped first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._rows: OrderedDict[bytes, Row] = OrderedDict()

    def rows(self, keys: Sequence[bytes], make: Callable[[list[int]], Sequence[Row]]) -> list[Row]:
        """The row of every key; `make(places)` computes, without gradients, those of missing keys at `places`."""
        found: dict[int, Row] = {}
        for place, key in enumerate(keys):
            if key in self._rows:
                self._rows.move_to_end(key)
                found[place] = self._rows[key]
        missing = [place for place in range(len(keys)) if place not in found]
        if missing:
            with torch.no_grad():
                made = make(missing)
            for place, row in zip(missing, made, strict=True):
                found[place] = row
                self._keep(keys[place], row)
        return [found[place] for place in range(len(keys))]

    def _keep(self, key: bytes, row: Row) -> None:
        # A row may be a view, which would keep the memory of its whole batch.
        own = tuple(x.clone() for x in row)
        self._drop(key)
        self._rows[key] = own
        self.num_bytes += _size(own)
        while self.num_bytes > self.max_bytes:
            self._drop(next(iter(self._rows)))

    def _drop(self, key: bytes) -> None:
        row = self._rows.pop(key, None)
        if row is not None:
            self.num_bytes -= _size(row)


def _size(row: Row) -> int:
    return sum(x.numel() * x.element_size() for x in row)
