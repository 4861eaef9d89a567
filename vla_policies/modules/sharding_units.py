"""Which parts of a network FSDP2 gathers one after another."""

from __future__ import annotations

from torch import nn


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
