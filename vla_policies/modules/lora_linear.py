"""A linear layer with its LoRA adapter as one operation: less memory traffic than peft's four, the same numbers.

peft adds adapters by separate operations, each of which makes a tensor as large as the layer's output, and computes
adapters kept in float32 beside half-precision weights in float32. Here the product is added where the layer's output
already lies, in the type of the input; gradients arrive in float32 as before.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.nn import functional

from vla_policies.modules.mixed_precision import autocast_type


class FusedLoraLinear(LoraLinear):
    """peft's layer with one adapter, run as one operation; whatever else peft can do goes peft's way."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`[..., in]` to `[..., out]`."""
        base: nn.Module = self.get_base_layer()
        names = self.active_adapters
        if (
            args
            or kwargs
            or self.disable_adapters
            or self.merged
            or len(names) != 1
            or names[0] not in self.lora_A
            or base.weight.requires_grad
            or x.dtype != base.weight.dtype
            # Autocast would change the type of the products and not of the sum.
            or autocast_type(x) not in (None, x.dtype)
        ):
            out: Tensor = super().forward(x, *args, **kwargs)
            return out
        down, up = self.lora_A[names[0]].weight, self.lora_B[names[0]].weight
        fused: Tensor = _Fused.apply(x, base.weight, base.bias, down, up, self.scaling[names[0]])
        return fused


def fuse(module: nn.Module) -> None:
    """Run every adapted linear layer of `module` as one operation; names and weights stay as they are."""
    layer: Any
    for layer in module.modules():
        if type(layer) is not LoraLinear or any(layer.use_dora.values()):
            continue
        if all(isinstance(dropout, nn.Identity) for dropout in layer.lora_dropout.values()):
            layer.__class__ = FusedLoraLinear


class _Fused(torch.autograd.Function):
    """x W' + b + scale (x A') B'; W and b take no gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor, scale: float
    ) -> Tensor:
        flat_NI = x.reshape(-1, x.shape[-1])
        inner_NR = flat_NI @ down.to(x.dtype).t()
        out_NO = functional.linear(flat_NI, weight, bias)
        out_NO.addmm_(inner_NR, up.to(x.dtype).t(), alpha=scale)
        ctx.save_for_backward(flat_NI, inner_NR, weight, down, up)
        ctx.scale = scale
        return out_NO.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        flat_NI, inner_NR, weight, down, up = ctx.saved_tensors
        grad_NO = grad_outputs[0].reshape(-1, weight.shape[0])
        grad_NR = grad_NO @ up.to(grad_NO.dtype)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_NO @ weight
            grad_x.addmm_(grad_NR, down.to(grad_NO.dtype), alpha=ctx.scale)
            grad_x = grad_x.view(*grad_outputs[0].shape[:-1], -1)
        grad_down = (grad_NR.t() @ flat_NI).to(down.dtype) * ctx.scale
        grad_up = (grad_NO.t() @ inner_NR).to(up.dtype) * ctx.scale
        return grad_x, None, None, grad_down, grad_up, None
