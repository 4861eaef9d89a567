"""Upper bounds of a card: of its data sheet, or measured by one matrix product and one copy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True)
class Peak:
    """Upper bounds of a card."""

    flops: float
    """Dense bf16 operations per second, accumulated in float32."""
    bandwidth: float
    """Bytes of memory per second, read and written together."""
    source: str


DATA_SHEETS: dict[tuple[str, ...], Peak] = {
    ("H200",): Peak(989e12, 4.8e12, "NVIDIA H200 data sheet"),
    ("H100", "PCIe"): Peak(756e12, 2.0e12, "NVIDIA H100 data sheet, PCIe"),
    ("H100",): Peak(989e12, 3.35e12, "NVIDIA H100 data sheet, SXM"),
    ("A100", "40GB"): Peak(312e12, 1.555e12, "NVIDIA A100 data sheet, 40 GB"),
    ("A100",): Peak(312e12, 2.039e12, "NVIDIA A100 data sheet, 80 GB SXM"),
    ("L40S",): Peak(362e12, 0.864e12, "NVIDIA L40S data sheet"),
    ("L4",): Peak(121e12, 0.3e12, "NVIDIA L4 data sheet"),
    ("A10",): Peak(125e12, 0.6e12, "NVIDIA A10 data sheet"),
    ("4090",): Peak(165.2e12, 1.008e12, "NVIDIA Ada GPU architecture white paper"),
    ("3090",): Peak(71e12, 0.936e12, "NVIDIA Ampere GA102 white paper"),
}
"""Words of a card's name -> its bounds; the first row of which all words occur."""


def data_sheet(card: str) -> Peak | None:
    """Return the bounds of a card by the name that CUDA gives it; None where the table has no row for it."""
    words = card.replace("-", " ").split()
    return next((peak for row, peak in DATA_SHEETS.items() if set(row) <= set(words)), None)


def card_name(device: torch.device) -> str:
    """Name of the GPU, or "CPU"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def wait(device: torch.device) -> None:
    """Return when the device has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rate(turn: Callable[[], object], per_turn: float, seconds: float, device: torch.device) -> float:
    """How many of `per_turn` a second, over turns that take `seconds` together, after one unmeasured turn."""
    turn()
    wait(device)
    turns, start = 0, time.perf_counter()
    while not turns or time.perf_counter() - start < seconds:
        turn()
        wait(device)
        turns += 1
    return per_turn * turns / (time.perf_counter() - start)


def measured_peak(device: torch.device, *, side: int, copied: int, seconds: float) -> Peak:
    """One bf16 product of `side` x `side` matrices again and again, and a copy of `copied` bytes."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a_SS, b_SS = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    out_SS = torch.empty_like(a_SS)
    flops = rate(lambda: torch.mm(a_SS, b_SS, out=out_SS), 2.0 * side**3, seconds, device)
    source = torch.empty(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bandwidth = rate(lambda: target.copy_(source), 2.0 * copied, seconds, device)
    return Peak(flops, bandwidth, f"measured: {dtype} product of side {side}, copy of {copied >> 20} MiB")
