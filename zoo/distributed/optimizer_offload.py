"""Moving what rests out of a GPU's memory: while a rank decides, its optimiser has nothing to do.

Adam keeps two numbers for every trained one, and gradients one more: with all weights trained that is more than the
policy itself, and room for more environments or larger batches of inference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def resting(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, the optimiser's state is in main memory and gradients are forgotten; after, it is back as it was."""
    optimizer.zero_grad(set_to_none=True)
    homes = move_state(optimizer, torch.device("cpu"))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    try:
        yield
    finally:
        for values, name, device in homes:
            values[name] = values[name].to(device)


def move_state(
    optimizer: torch.optim.Optimizer, device: torch.device
) -> list[tuple[dict[str, Tensor], str, torch.device]]:
    """Move every tensor of the state that is elsewhere; returns where each was: (its dict, its name, its device)."""
    moved = []
    for values in optimizer.state.values():
        for name, one in values.items():
            if isinstance(one, Tensor) and one.device != device:
                moved.append((values, name, one.device))
                values[name] = one.to(device)
    return moved
