"""From the host to the device: uploads that nothing waits for, and constants that go up once."""

from __future__ import annotations

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
