"""Moving the optimiser's state out of a GPU's memory while a rank decides.

Adam keeps two numbers for every trained weight, and gradients one more: with all weights trained that is more than the
policy itself, and room for more environments or larger batches of inference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def offloaded_state(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Context manager that keeps the optimiser's state in main memory; gradients are dropped."""
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
    """Move the state's tensors to `device`; return (dict, name, device before) of each that was elsewhere."""
    moved = []
    for values in optimizer.state.values():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.device != device:
                moved.append((values, name, value.device))
                values[name] = value.to(device)
    return moved
