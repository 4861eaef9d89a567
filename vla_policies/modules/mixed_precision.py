"""Exceptions from torch's autocast to half precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional


def autocast_type(x: Tensor) -> torch.dtype | None:
    """The dtype of products with `x` under autocast; None outside of it."""
    device = x.device.type
    # Tensors without memory ("meta") are on no device that has autocast.
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Context manager that turns autocast off on the device of `x`."""
    return torch.autocast(x.device.type, enabled=False) if autocast_type(x) is not None else nullcontext()


def in_float32(layers: nn.Sequential, x: Tensor) -> Tensor:
    """`layers(x)` in float32 for any float dtype of `x` and of the weights, under autocast too.

    FSDP gives weights in half precision.
    """
    x = x.float()
    with without_autocast(x):
        for layer in layers:
            x = _linear(layer, x) if isinstance(layer, nn.Linear) else layer(x)
    return x


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    bias = None if layer.bias is None else layer.bias.float()
    return functional.linear(x, layer.weight.float(), bias)
