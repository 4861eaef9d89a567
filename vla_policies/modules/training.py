"""Training aids: activation checkpointing, float32 under autocast, compiled blocks, FSDP2's units, the optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint

from vla_gym.errors import BadValue

CheckpointFn = Callable[..., Any]
"""`run(function, *args)` returns `function(*args)` and stores all its activations, or only the inputs."""
VARIANTS = 64
"""Compilations of a block's code before the compiler gives up on further ones. OpenVLA's layers come to some 20, with a
cache and without, padding, gradients, in training mode, for one observation and for many; torch stops at 8."""


def store_activations(function: Callable[..., Any], *args: Any) -> Any:
    """Run `function`; autograd stores what it needs."""
    return function(*args)


def checkpoint_fn(*, recompute: bool) -> CheckpointFn:
    """Return how blocks run: with `recompute` and gradients on, a block runs again in the backward pass, which takes
    less memory and about a third more time."""
    if recompute and torch.is_grad_enabled():
        return partial(checkpoint, use_reentrant=False)
    return store_activations


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
    """`layers(x)` in float32 for any float dtype of `x` and of the weights (FSDP's are half), under autocast too."""
    x = x.float()
    with without_autocast(x):
        for layer in layers:
            if isinstance(layer, nn.Linear):
                x = functional.linear(x, layer.weight.float(), None if layer.bias is None else layer.bias.float())
            else:
                x = layer(x)
    return x


def compile_blocks(network: nn.Module, backend: str = "inductor") -> int:
    """Compile every block of a `ModuleList` at its first call, in place under the same name; return their number.

    All have one shape, so that a compilation serves all; lengths of prompts and sizes of batches may vary without a new
    one. `backend` is torch's name of the compiler. Compiled blocks round differently: numbers agree to about 1e-5, not
    to the bit.
    """
    blocks = [block for stack in network.modules() if isinstance(stack, nn.ModuleList) for block in stack.children()]
    if not blocks:
        raise BadValue(f"{type(network).__name__} has no stack of blocks to compile; leave compile out")
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, VARIANTS)
    for block in blocks:
        block.compile(dynamic=True, backend=backend)
    return len(blocks)


def units(module: nn.Module) -> list[nn.Module]:
    """Parts of `module` to shard one after another: blocks of its stacks, then all that is left.

    Of every stack all blocks but the last, of which families run parts by hand, where no `forward` gathers the weights.
    A block with `run_in_parts` is left out for the same reason.
    """
    blocks: list[nn.Module] = []
    for stack in module.modules():
        inside = any(stack is part for block in blocks for part in block.modules())
        if isinstance(stack, nn.ModuleList) and not inside:
            blocks += [block for block in list(stack)[:-1] if not getattr(block, "run_in_parts", False)]
    return [*blocks, module]


class GroupScaledAdamW(AdamW):
    """AdamW whose groups may carry `lr_scale`: the group steps with `lr * lr_scale`.

    Stable-Baselines3 writes one schedule value into every group's `lr` before each update, which would
    overwrite a value head's own rate; with the factor that rate follows the schedule.
    """

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One AdamW step; each group's `lr` reads the same before and after."""
        rates = [group["lr"] for group in self.param_groups]
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate * group.get("lr_scale", 1.0)
        try:
            return super().step(closure)
        finally:
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate


def parameter_groups(
    model: nn.Module, value_parameters: Iterable[nn.Parameter], value_lr_scale: float
) -> list[dict[str, Any]]:
    """Two groups of trainable parameters: "backbone", and "value_head" at `value_lr_scale` times the rate."""
    value_ids = {id(parameter) for parameter in value_parameters}
    groups = []
    for name, scale in (("backbone", 1.0), ("value_head", value_lr_scale)):
        params = [p for p in model.parameters() if p.requires_grad and (id(p) in value_ids) == (name == "value_head")]
        groups.append({"name": name, "params": params, "lr_scale": scale})
    return [group for group in groups if group["params"]]
