"""`torch.compile` for a network's blocks: all have one shape, so that a compilation serves all."""

from __future__ import annotations

import torch
from torch import nn

from vla_gym.errors import BadValue

VARIANTS = 64
"""Compilations of a block's code before the compiler gives up on further ones. OpenVLA's layers come to some 20, with a
cache and without, padding, gradients, in training mode, for one observation and for many; torch stops at 8."""


def compile_blocks(network: nn.Module, backend: str = "inductor") -> int:
    """Compile every block of a `ModuleList` at its first call, in place under the same name; return their number.

    Lengths of prompts and sizes of batches may vary without a new compilation. `backend` is torch's name of the
    compiler. Compiled blocks round differently: numbers agree to about 1e-5, not to the bit.
    """
    blocks = [block for stack in network.modules() if isinstance(stack, nn.ModuleList) for block in stack.children()]
    if not blocks:
        raise BadValue(f"{type(network).__name__} has no stack of blocks to compile; leave compile out")
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, VARIANTS)
    for block in blocks:
        block.compile(dynamic=True, backend=backend)
    return len(blocks)
