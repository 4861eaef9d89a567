"""Hyperparameter schedules, written as mappings: `{schedule: linear, start: 3.0e-4, end: 0.0}`.

A schedule is called with the remaining progress, 1 at the start of training and 0 at its end, which is
Stable-Baselines3's convention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vla_gym.errors import BadValue, shown, unknown_name

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
    """Value at its end; of no meaning to a constant."""

    def __call__(self, progress_remaining: float) -> float:
        return self.end + (self.start - self.end) * SHAPES[self.shape](progress_remaining)


def build_schedule(value: float | Mapping[str, Any], name: str) -> float | Schedule:
    """Return a number as it is and a mapping as a schedule; `name` starts the error message.

    Raises `UnknownName` for another schedule or key, `BadValue` for what is no number.
    """
    if not isinstance(value, Mapping):
        return _number(value, name)
    rest = dict(value)
    shape = rest.pop("schedule", None)
    if not isinstance(shape, str) or shape not in SHAPES:
        raise unknown_name(f"schedule ({name})", shown(shape) if not isinstance(shape, str) else shape, SHAPES)
    known = ("start",) if shape == "constant" else ("start", "end")
    for key in rest:
        if key not in known:
            raise unknown_name(f"setting of a {shape} schedule ({name})", str(key), known)
    if "start" not in rest:
        raise BadValue(f"{name}: a {shape} schedule needs 'start', got {shown(dict(value))}")
    numbers = {key: _number(number, f"{name}.{key}") for key, number in rest.items()}
    return Schedule(shape=shape, **numbers)


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadValue(f"{name} must be a number, got {shown(value)}")
    return float(value)
