"""The device that a policy is built for, which decides what a weight type of "auto" means.

Weights are read before a policy is moved, so the device is said around its construction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_BUILT_FOR: ContextVar[torch.device | None] = ContextVar("built_for", default=None)


@contextmanager
def built_for(device: torch.device | str) -> Iterator[None]:
    """Policies that are built inside will be used on `device`; outside they are for CUDA where torch sees it."""
    token = _BUILT_FOR.set(torch.device(device))
    try:
        yield
    finally:
        _BUILT_FOR.reset(token)


def for_gpu() -> bool:
    """Whether a policy that is built now is for a GPU."""
    device = _BUILT_FOR.get()
    return torch.cuda.is_available() if device is None else device.type == "cuda"
