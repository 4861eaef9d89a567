"""Devices: uploads without a wait, constants that go up once, one download for many tensors; and the device that a
policy is built for, which decides the meaning of a weight type of "auto"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

_BUILT_FOR: ContextVar[torch.device | None] = ContextVar("built_for", default=None)
_CAPTURING: ContextVar[bool] = ContextVar("capturing", default=False)


def upload(x: Tensor, device: torch.device) -> Tensor:
    """`x` on `device`. To a GPU it goes from pinned memory, so that the host does not wait for the copy."""
    if device.type == "cuda" and x.device.type == "cpu":
        return (x if x.is_pinned() else x.pin_memory()).to(device, non_blocking=True)
    return x.to(device)


def pinned_copy(x: Tensor) -> Tensor:
    """A GPU's tensor in pinned main memory, from which it comes back without a wait; not for the CPU to read."""
    return torch.empty_like(x, device="cpu", pin_memory=x.is_cuda).copy_(x, non_blocking=True)


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


@contextmanager
def capturing() -> Iterator[None]:
    """A call is recorded inside, to be launched again without its Python: nothing may be kept from earlier calls."""
    token = _CAPTURING.set(True)
    try:
        yield
    finally:
        _CAPTURING.reset(token)


def is_capturing() -> bool:
    return _CAPTURING.get()


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
