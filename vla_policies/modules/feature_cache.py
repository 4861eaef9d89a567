"""Cache of a frozen encoder's outputs, kept from a decision for the epochs of its update.

Acting, bootstrapping and every epoch of an update then use the same numbers; dropped rows are computed again.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from math import inf

import torch
from torch import Tensor
from torch.nn import functional

from vla_gym.errors import BadValue
from vla_gym.system.limits import main_memory
from vla_policies.devices import pinned_copy, upload

GIB = 2**30

Row = tuple[Tensor, ...]
"""The encoder's output for one observation."""


def check_gib(gib: float | None) -> None:
    """Raise unless `gib`, the setting `cache_features`, is a size or None."""
    if gib is not None and not 0 <= gib < inf:
        raise BadValue(f"cache_features must be GiB >= 0, with 0 for none and null for a share of memory, got {gib}")


class FeatureCache:
    """Rows by key; least recently used ones go to main memory, then away.

    :param max_bytes: most bytes on the rows' device; None = a quarter of a GPU's memory that is free at the first row,
        an eighth of the main memory where rows are there.
    :param host_bytes: most bytes of a GPU's rows in main memory; None = an eighth of it.
    """

    def __init__(self, max_bytes: int | None = None, host_bytes: int | None = None) -> None:
        self.max_bytes = max_bytes
        self.host_bytes = host_bytes
        self.num_bytes = 0
        self._device = torch.device("cpu")
        self._rows: OrderedDict[Hashable, Row] = OrderedDict()
        self._evicted: FeatureCache | None = None

    def __deepcopy__(self, memo: object) -> FeatureCache:
        return FeatureCache(self.max_bytes, self.host_bytes)

    def rows(self, keys: Sequence[Hashable], make: Callable[[list[int]], Row]) -> Row:
        """The rows of `keys` as a batch, shorter ones followed by zeros; `make(places)` computes those of missing keys
        at `places`, as a batch too, without gradients."""
        found = {key: row for key in keys if (row := self._find(key)) is not None}
        missing = {key: place for place, key in enumerate(keys) if key not in found}
        if missing:
            with torch.no_grad():
                made = make(list(missing.values()))
            self._device = made[0].device
            if self.max_bytes is None:
                self.max_bytes = _share(self._device)
            for number, key in enumerate(missing):
                # A view would keep the memory of its whole batch.
                found[key] = row = tuple(x[number].clone() for x in made)
                self._keep(key, row)
            if len(missing) == len(keys):
                return made
        rows = [found[key] for key in keys]
        return tuple(_batched(parts, self._device) for parts in zip(*rows, strict=True))

    def _find(self, key: Hashable) -> Row | None:
        if key in self._rows:
            self._rows.move_to_end(key)
            return self._rows[key]
        return None if self._evicted is None else self._evicted._find(key)

    def _keep(self, key: Hashable, row: Row) -> None:
        self._rows[key] = row
        self.num_bytes += _size(row)
        assert self.max_bytes is not None
        while self.num_bytes > self.max_bytes:
            oldest, old = self._rows.popitem(last=False)
            self.num_bytes -= _size(old)
            if old[0].device.type != "cpu":
                if self._evicted is None:
                    self._evicted = FeatureCache(
                        _share(torch.device("cpu")) if self.host_bytes is None else self.host_bytes
                    )
                self._evicted._keep(oldest, tuple(map(pinned_copy, old)))


def _share(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 4
    return main_memory() // 8 // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _size(row: Row) -> int:
    return sum(x.numel() * x.element_size() for x in row)


def _batched(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    longest = [max(lengths) for lengths in zip(*(x.shape for x in parts), strict=True)]
    padded = [
        x
        if list(x.shape) == longest
        else functional.pad(
            x, [n for have, want in zip(reversed(x.shape), reversed(longest)) for n in (0, want - have)]
        )
        for x in (upload(part, device) for part in parts)
    ]
    return torch.stack(padded)
