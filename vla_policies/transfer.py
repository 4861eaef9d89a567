"""Between host and device: uploads that nothing waits for, constants that go up once, one download for many tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


def upload(x: Tensor, device: torch.device) -> Tensor:
    """`x` on `device`. To a GPU it goes from pinned memory, so that the host does not wait for the copy."""
    if device.type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


@lru_cache(maxsize=256)
def constant(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The numbers (nested tuples) as a tensor on `device`, uploaded once; not to be written to."""
    return torch.tensor(values, dtype=dtype).to(device)


def download(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors, all on one device, on the CPU; copied as one, so that the host waits for a GPU once."""
    if all(x.device.type == "cpu" for x in tensors):
        return list(tensors)
    # The widest first: each then begins at a multiple of its width.
    order = sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())
    parts = [tensors[i].detach().contiguous().flatten().view(torch.uint8) for i in order]
    pieces = torch.cat(parts).cpu().split([len(part) for part in parts])
    found = {i: piece.view(tensors[i].dtype).view(tensors[i].shape) for i, piece in zip(order, pieces, strict=True)}
    return [found[i] for i in range(len(tensors))]
