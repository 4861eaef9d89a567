"""Where torch's autocast, which computes in half precision whatever it may, has to be minded."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional


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


def in_float32(layers: nn.Sequential, x: Tensor) -> Tensor:
    """What `layers` make of `x`, of any float dtype, in float32: under autocast too, and where weights have less.

    FSDP hands over the weights in half precision, to be multiplied in float32 all the same.
    """
    x = x.float()
    with as_written(x):
        for layer in layers:
            x = _linear(layer, x) if isinstance(layer, nn.Linear) else layer(x)
    return x


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    bias = None if layer.bias is None else layer.bias.float()
    return functional.linear(x, layer.weight.float(), bias)
