"""Settings and figures of all stages of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Size = Literal["tiny", "full"]
Figures = dict[str, float | int | str]
"""Figures of a stage: name with unit -> number or word."""


class Skipped(Exception):
    """A stage does not apply to this machine; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much is measured."""

    size: Size
    """"tiny" goes through everything on a CPU in minutes and measures nothing of interest."""
    device: torch.device
    seconds: float
    """Of one measurement."""
    batches: tuple[int, ...]
    """Observations decided at once."""
    update_batch: int
    """Decisions of an optimiser step."""
    micro_batch: int
    """Decisions scored at once."""
    num_envs: int
    """Simulators of a benchmark, each in a worker of its own."""
    batched_envs: int
    """Slots of GPU physics."""
    memory: float | None = None
    """GiB of the card that a stage may take; None = all."""


def settings_of(size: Size, device: torch.device, cores: int) -> Settings:
    """The settings of a size; a worker for each core, 16 at most."""
    if size == "tiny":
        return Settings(
            size=size,
            device=device,
            seconds=0.0,
            batches=(1, 2, 4),
            update_batch=4,
            micro_batch=2,
            num_envs=1,
            batched_envs=2,
        )
    return Settings(
        size=size,
        device=device,
        seconds=3.0,
        batches=(1, 8, 64),
        update_batch=64,
        micro_batch=8,
        num_envs=max(1, min(16, cores)),
        batched_envs=256,
    )
