"""Where torch's autocast, which computes in half precision whatever it may, has to be minded."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def autocast_type(x: Tensor) -> torch.dtype | None:
    """What products with `x` are computed in, whatever their types; None outside of autocast."""
    device = x.device.type
    # Tensors without memory ("meta") are on no device that has autocast.
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None


def as_written(x: Tensor) -> AbstractContextManager[object]:
    """Inside, what is computed with `x` is computed in the types it has."""
    return torch.autocast(x.device.type, enabled=False) if autocast_type(x) is not None else nullcontext()
