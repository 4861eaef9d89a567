"""A linear layer and its LoRA adapter run as one operation.

peft adds adapters by separate operations, each of which makes a tensor as large as the layer's output, and computes
adapters kept in float32 beside half-precision weights in float32. `FusedLoraLinear` adds the product where the
layer's output already lies, in the type of the input; gradients arrive in float32 as before. The adapters in that type
are kept while no gradient is asked for, so that acting takes three kernels a layer instead of five.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.nn import functional

from vla_policies.devices import is_capturing
from vla_policies.modules.quantization import QuantizedLinear, restored, stored
from vla_policies.modules.training import autocast_type


class FusedLoraLinear(LoraLinear):
    """peft's layer with one adapter, run as one operation; all other cases run peft's own forward."""

    _cast: dict[str, tuple[object, Tensor]]
    """Name of adapters' weights -> the state they were cast in, and the result."""

    def train(self, mode: bool = True) -> Self:
        """As `nn.Module`; between modes weights may have changed unseen, and are cast anew."""
        if mode != self.training:
            self._cast = {}
        return super().train(mode)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`[..., in]` to `[..., out]`."""
        if args or kwargs or not self.runs_fused(x):
            return super().forward(x, *args, **kwargs)
        return _fused((self,), x)[0]

    def runs_fused(self, x: Tensor) -> bool:
        """Whether it runs as one operation on `x`."""
        base, names = stored(self.get_base_layer()), self.active_adapters
        return not (
            self.disable_adapters
            or self.merged
            or len(names) != 1
            or names[0] not in self.lora_A
            or (isinstance(base, Tensor) and base.requires_grad)
            or x.dtype != base.dtype
            # Autocast would change the type of the products and not of the sum.
            or autocast_type(x) not in (None, x.dtype)
        )

    def parts(self) -> tuple[Tensor | QuantizedLinear, Tensor | None, Tensor, Tensor, float]:
        """W (of a quantised layer itself), b, A, B and the scale of the active adapter."""
        base, name = self.get_base_layer(), self.active_adapters[0]
        return stored(base), base.bias, self.lora_A[name].weight, self.lora_B[name].weight, self.scaling[name]

    def kept(self, name: str, weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """`_joined`, done once as long as the weights stay the same; for passes without gradients."""
        if torch.compiler.is_compiling() or is_capturing():
            return _joined(weights, dtype)
        # Fused optimisers and collectives count no version up: rollouts begin with `train(False)`, see above.
        state = dtype, *((id(weight), weight._version, weight.device) for weight in weights)
        if name not in self._cast or self._cast[name][0] != state:
            self._cast[name] = state, _joined(weights, dtype)
        return self._cast[name][1]

    def forget(self) -> None:
        """Drop what `kept` has."""
        if self._cast:
            self._cast = {}


def linears(layers: Sequence[nn.Module], x: Tensor) -> Sequence[Tensor]:
    """Outputs of linear layers with the same input; the first products of their adapters are one."""
    if all(isinstance(layer, FusedLoraLinear) and layer.runs_fused(x) for layer in layers):
        return _fused(layers, x)  # type: ignore[arg-type]
    return [layer(x) for layer in layers]


def _fused(layers: Sequence[FusedLoraLinear], x: Tensor) -> Sequence[Tensor]:
    parts = [layer.parts() for layer in layers]
    scales = tuple(part[4] for part in parts)
    if torch.is_grad_enabled():
        layers[0].forget()
        return _FusedLora.apply(x, scales, *(tensor for part in parts for tensor in part[:4]))
    # One name for each number of layers: a layer may run alone, too.
    down = layers[0].kept(f"down{len(layers)}", [part[2] for part in parts], x.dtype)
    ups = [layer.kept("up", [part[3]], x.dtype) for layer, part in zip(layers, parts, strict=True)]
    flat_outs, _ = _adapted(x.reshape(-1, x.shape[-1]), [part[:2] for part in parts], down, ups, scales)
    return [out_NO.view(*x.shape[:-1], -1) for out_NO in flat_outs]


def fuse(module: nn.Module) -> None:
    """Run every adapted linear layer of `module` as one operation; names and weights do not change."""
    layer: Any
    for layer in module.modules():
        if type(layer) is not LoraLinear or any(layer.use_dora.values()):
            continue
        if all(isinstance(dropout, nn.Identity) for dropout in layer.lora_dropout.values()):
            layer.__class__ = FusedLoraLinear
            layer._cast = {}


def _joined(weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    cast = [weight.to(dtype) for weight in weights]
    return cast[0] if len(cast) == 1 else torch.cat(cast)


def _adapted(
    x_NI: Tensor,
    bases: Sequence[tuple[Tensor | QuantizedLinear, Tensor | None]],
    down_RI: Tensor,
    ups: Sequence[Tensor],
    scales: Sequence[float],
) -> tuple[Sequence[Tensor], Tensor]:
    """x W' + b + scale (x A') B' of every layer, and x A' of all; everything of one type."""
    inner_NR = x_NI @ down_RI.t()
    outs = [functional.linear(x_NI, restored(weight), bias) for weight, bias in bases]
    inners = inner_NR.split([up.shape[1] for up in ups], dim=1)
    for out_NO, inner, up, scale in zip(outs, inners, ups, scales, strict=True):
        out_NO.addmm_(inner, up.t(), alpha=scale)
    return outs, inner_NR


class _FusedLora(torch.autograd.Function):
    """`_adapted` with gradients; W and b take none. Takes (W, b, A, B) of every layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scales: tuple[float, ...], *parts: Any) -> tuple[Tensor, ...]:
        flat_NI = x.reshape(-1, x.shape[-1])
        weights, biases, downs, ups = parts[::4], parts[1::4], parts[2::4], parts[3::4]
        bases = list(zip(weights, biases, strict=True))
        outs, inner_NR = _adapted(flat_NI, bases, _joined(downs, x.dtype), [up.to(x.dtype) for up in ups], scales)
        # Codes are kept, not what they stand for.
        ctx.quantized = [weight if isinstance(weight, QuantizedLinear) else None for weight in weights]
        plain = [weight if isinstance(weight, Tensor) else None for weight in weights]
        ctx.save_for_backward(flat_NI, inner_NR, *plain, *downs, *ups)
        ctx.scales = scales
        return tuple(out_NO.view(*x.shape[:-1], -1) for out_NO in outs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        flat_NI, inner_NR, *saved = ctx.saved_tensors
        count = len(ctx.scales)
        downs, ups = saved[count : 2 * count], saved[2 * count :]
        weights = [
            weight if layer is None else layer for weight, layer in zip(saved[:count], ctx.quantized, strict=True)
        ]
        inners = inner_NR.split([up.shape[1] for up in ups], dim=1)
        grads = [grad.reshape(-1, grad.shape[-1]) for grad in grad_outputs]
        grad_x: Tensor | None = None
        grad_parts: list[Tensor | None] = []
        for grad_NO, weight, down, up, inner, scale in zip(grads, weights, downs, ups, inners, ctx.scales, strict=True):
            grad_NR = grad_NO @ up.to(grad_NO.dtype)
            if ctx.needs_input_grad[0]:
                whole = restored(weight)
                grad_x = grad_NO @ whole if grad_x is None else grad_x.addmm_(grad_NO, whole)
                grad_x.addmm_(grad_NR, down.to(grad_NO.dtype), alpha=scale)
            grad_down = (grad_NR.t() @ flat_NI).to(down.dtype) * scale
            grad_up = (grad_NO.t() @ inner).to(up.dtype) * scale
            grad_parts += [None, None, grad_down, grad_up]
        if grad_x is not None:
            grad_x = grad_x.view(*grad_outputs[0].shape[:-1], -1)
        return grad_x, None, *grad_parts
