"""Hyperparameter schedules, written as mappings: `{schedule: linear, start: 3.0e-4, end: 0.0}`.

A schedule is called with the remaining progress, 1 at the start of training and 0 at its end, which is
Stable-Baselines3's convention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

SHAPES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda progress_remaining: 1.0,
    "linear": lambda progress_remaining: progress_remaining,
    "cosine": lambda progress_remaining: 0.5 * (1.0 - math.cos(math.pi * progress_remaining)),
}
"""Name in a hyperparameter file -> weight of `start` against `end`."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A value that changes with the remaining progress."""

    shape: str
    """Key of `SHAPES`."""
    start: float
    """Value at the start of training."""
    end: float = 0.0
    """Value at its end; unused by a constant."""

    def __call__(self, progress_remaining: float) -> float:
        return self.end + (self.start - self.end) * SHAPES[self.shape](progress_remaining)


def build_schedule(value: Any) -> Any:
    """Return a mapping, checked by `zoo.config.settings.check_value`, as a schedule, and anything else as it is."""
    if not isinstance(value, Mapping):
        return value
    return Schedule(shape=value["schedule"], **{name: value[name] for name in ("start", "end") if name in value})
