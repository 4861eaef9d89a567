"""Training aids: activation checkpointing, float32 under autocast, compiled blocks, FSDP2's units, the optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Muon
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

    Groups with `muon` hold matrices and step by `torch.optim.Muon` (Jordan et al. 2024), scaled to the size of AdamW's
    steps so that one rate serves both (Liu et al. 2025, arXiv:2502.16982, section 2.2).
    """

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step; each group's `lr` reads the same before and after."""
        groups = self.param_groups
        scaled = [{**group, "lr": group["lr"] * group.get("lr_scale", 1.0)} for group in groups]
        try:
            self.param_groups = [group for group in scaled if not group.get("muon")]
            loss = super().step(closure)
        finally:
            self.param_groups = groups
        for group in (group for group in scaled if group.get("muon")):
            muon = Muon(group["params"], group["lr"], group["weight_decay"], adjust_lr_fn="match_rms_adamw")
            muon.state = self.state
            muon.step()
            for parameter in group["params"]:
                # AdamW's load_state_dict reads it of every parameter that has a state.
                self.state[parameter].setdefault("step", torch.tensor(0.0))
        return loss


def parameter_groups(
    model: nn.Module, value_parameters: Iterable[nn.Parameter], value_lr_scale: float, *, muon: bool = False
) -> list[dict[str, Any]]:
    """Groups of trainable parameters: "backbone", and "value_head" at `value_lr_scale` times the rate.

    With `muon` the weights of the backbone's linear layers are a third, "matrices".
    """
    value_ids = {id(parameter) for parameter in value_parameters}
    matrix_ids = {id(m.weight) for m in model.modules() if muon and isinstance(m, nn.Linear)} - value_ids
    groups: list[dict[str, Any]] = [
        {"name": "backbone", "params": [], "lr_scale": 1.0},
        {"name": "value_head", "params": [], "lr_scale": value_lr_scale},
        {"name": "matrices", "params": [], "lr_scale": 1.0, "muon": True},
    ]
    for parameter in model.parameters():
        if parameter.requires_grad:
            groups[2 * (id(parameter) in matrix_ids) + (id(parameter) in value_ids)]["params"].append(parameter)
    return [group for group in groups if group["params"]]
