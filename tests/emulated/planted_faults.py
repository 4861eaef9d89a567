"""Faults of code that has only run on a CPU, each of which the emulated device must find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from emulated_device import DEVICE, EmulatedTensor, watch
from torch import Tensor
from torch.nn import functional

from vla_policies.devices import upload


def numbers() -> Tensor:
    """2 x 3 numbers on the device."""
    return upload(torch.arange(6.0).view(2, 3), torch.device(DEVICE))


def indexed(x: Tensor) -> Tensor:
    return x[x > 2]


def uploads_in_a_loop() -> Tensor:
    x = numbers()
    for _ in range(3):
        x = x + torch.ones(3).to(DEVICE)
    return x


REFUSED: dict[str, Callable[[], object]] = {
    "mixed devices": lambda: numbers() + torch.ones(3),
    "a mask left on the CPU": lambda: torch.where(torch.ones(2, 3, dtype=torch.bool), numbers(), 0.0),
    "a table indexed from the device": lambda: torch.arange(6.0)[torch.zeros(2, dtype=torch.int64, device=DEVICE)],
    "NumPy of a tensor of the device": lambda: numbers().numpy(),
}
WAITED_FOR: dict[str, Callable[[], object]] = {
    "item": lambda: numbers().sum().item(),
    "list": lambda: numbers().tolist(),
    "download": lambda: numbers().cpu(),
    "boolean index": lambda: indexed(numbers()),
}
UPLOADED: dict[str, tuple[int, Callable[[], object]]] = {
    "in a loop": (3, uploads_in_a_loop),
    "an index of the CPU": (1, lambda: numbers()[torch.tensor([0])]),
    "of pinned numbers": (1, lambda: numbers() + upload(torch.ones(3), torch.device(DEVICE))),
}
FAULTS = {**REFUSED, **WAITED_FOR, **{name: run for name, (_, run) in UPLOADED.items()}}


def refusal(name: str) -> str:
    """The message with which the device refuses a fault; "" where it does not."""
    try:
        FAULTS[name]()
    except (RuntimeError, TypeError) as error:
        return str(error)
    return ""


def found(name: str) -> tuple[Counter[str], int]:
    """Waits of the host for the device by place, and the number of uploads; both after those of the numbers."""
    with watch() as own:
        numbers()
    with watch() as counts:
        FAULTS[name]()
    return counts.waits - own.waits, counts.uploads.total() - own.uploads.total()


def kernels() -> dict[str, int]:
    """Launches of a product, a norm, plain attention and attention with grouped heads and a mask."""
    x, head = numbers(), torch.ones(1, 2, 3, 4, device=DEVICE)
    mask = torch.ones(3, 3, dtype=torch.bool, device=DEVICE)
    attention = functional.scaled_dot_product_attention
    with watch() as counts:
        assert isinstance(x @ x.t(), EmulatedTensor)
        functional.rms_norm(x, (3,))
        attention(head, head, head, mask)
        attention(head, head[:, :1], head[:, :1], mask, enable_gqa=True)
        x.t().unflatten(0, (3, 1)).detach()
    return dict(counts.launches)
