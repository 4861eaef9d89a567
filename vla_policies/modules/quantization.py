"""Frozen linear layers in 8 or 4 bits, which LoRA adapters train beside.

Weights alone are quantised; each product is computed with the dequantised weight in the type of the input, forward and
backward, and what is dequantised is not kept. So adapters have the gradients they have over a dequantised copy, and
acting and scoring use the same numbers. int8 is symmetric with one scale per output; nf4 is QLoRA's (arXiv:2305.14314)
with one scale per 64 weights, by bitsandbytes' kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_gym.errors import BadValue

Scheme = Literal["int8", "nf4"]
BLOCK = 64
"""Weights of nf4 with one scale."""
STEPS = 127
"""Largest number of int8."""
CODES, SCALE = "codes", "scale"


def check_installed(scheme: Scheme) -> None:
    """Raise `BadValue` where the library of a scheme is not here."""
    if scheme == "nf4" and find_spec("bitsandbytes") is None:
        raise BadValue(
            "quantization: nf4 needs bitsandbytes, which is not installed: pip install bitsandbytes, or take "
            "quantization: int8"
        )


class QuantizedLinear(nn.Linear):
    """A linear layer whose weight is codes and scales; no parameter but the bias.

    :param dtype: of the dequantised weight.
    """

    codes: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear, scheme: Scheme, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.scheme, self.dtype = scheme, dtype
        self.bias = linear.bias
        codes, scale = quantize(linear.weight.detach(), scheme)
        self.register_buffer(CODES, codes)
        self.register_buffer(SCALE, scale)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The dequantised weight `[O, I]`, made anew at every access."""
        return dequantize(self.codes, self.scale, (self.out_features, self.in_features), self.scheme, self.dtype)

    def forward(self, input: Tensor) -> Tensor:
        """`[..., I]` to `[..., O]`."""
        return _Product.apply(input, self)

    def _apply(self, fn: Any, recurse: bool = True) -> QuantizedLinear:
        """As `nn.Module`, but scales stay float32."""
        super()._apply(fn, recurse)
        self.scale = self.scale.float()
        return self


class _Product(torch.autograd.Function):
    """x W' + b; keeps neither input nor weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return functional.linear(x, layer.weight, layer.bias)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        return grad_outputs[0] @ ctx.layer.weight, None


def quantize(weight_OI: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Codes and float32 scales: int8 `[O, I]` and `[O]`, or uint8 with two 4-bit codes each and one scale a block."""
    outputs, inputs = weight_OI.shape
    if weight_OI.is_meta:
        blocks = -(-weight_OI.numel() // BLOCK)
        shape, scales = ((outputs, inputs), outputs) if scheme == "int8" else ((-(-weight_OI.numel() // 2),), blocks)
        kind = torch.int8 if scheme == "int8" else torch.uint8
        return weight_OI.new_empty(shape, dtype=kind), weight_OI.new_empty(scales, dtype=torch.float32)
    if scheme == "int8":
        scale_O = weight_OI.float().abs().amax(dim=1) / STEPS
        divisor_O1 = scale_O.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
        return (weight_OI.float() / divisor_O1).round().clamp(-STEPS, STEPS).to(torch.int8), scale_O
    from bitsandbytes.functional import quantize_4bit

    # In one row: on CPUs its kernel misreads matrices whose rows are no multiple of a block (0.50.2).
    codes, state = quantize_4bit(weight_OI.flatten(), blocksize=BLOCK, quant_type="nf4")
    return codes.flatten(), state.absmax


def dequantize(codes: Tensor, scale: Tensor, shape: tuple[int, int], scheme: Scheme, dtype: torch.dtype) -> Tensor:
    """Inverse of `quantize` up to rounding, `[O, I]`."""
    if codes.is_meta:
        return torch.empty(shape, dtype=dtype, device=codes.device)
    if scheme == "int8":
        return codes.to(dtype).mul_(scale[:, None].to(dtype))
    from bitsandbytes.functional import QuantState, dequantize_4bit

    flat = torch.Size((shape[0] * shape[1],))
    state = QuantState(absmax=scale, shape=flat, dtype=dtype, blocksize=BLOCK, quant_type="nf4")
    return dequantize_4bit(codes[:, None], state).view(shape)


def stored(layer: Any) -> Tensor | QuantizedLinear:
    """The weight of a linear layer as it is kept: a quantised layer stands for its own."""
    return layer if isinstance(layer, QuantizedLinear) else layer.weight


def restored(weight: Tensor | QuantizedLinear) -> Tensor:
    """The weight to compute with."""
    return weight.weight if isinstance(weight, QuantizedLinear) else weight


def quantize_layers(module: nn.Module, scheme: Scheme, dtype: torch.dtype) -> None:
    """Put a quantised layer in the place of every linear one in `module`, one after the other."""
    for name, child in list(module.named_children()):
        if type(child) is nn.Linear:
            setattr(module, name, QuantizedLinear(child, scheme, dtype))
        else:
            quantize_layers(child, scheme, dtype)


def quantized_layers(module: nn.Module) -> dict[str, QuantizedLinear]:
    """Name -> quantised layer."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, QuantizedLinear)}


def packed(module: nn.Module, tensors: dict[str, Tensor], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a checkpoint as `module.state_dict()` has them, one at a time; `tensors` is emptied."""
    layers = quantized_layers(module)
    for name in list(tensors):
        tensor = tensors.pop(name).to(dtype)
        owner, _, last = name.rpartition(".")
        if last == "weight" and owner in layers:
            codes, scale = quantize(tensor, layers[owner].scheme)
            yield f"{owner}.{CODES}", codes
            yield f"{owner}.{SCALE}", scale
        else:
            yield name, tensor.clone()


def plain_state(module: nn.Module) -> Mapping[str, Tensor]:
    """The state dict with dequantised weights, on the CPU, in the place of codes and scales."""
    layers, state = quantized_layers(module), {}
    for name, tensor in module.state_dict().items():
        owner, _, last = name.rpartition(".")
        if owner not in layers or last not in (CODES, SCALE):
            state[name] = tensor
        elif last == CODES:
            state[f"{owner}.weight"] = layers[owner].weight.cpu()
    return state
