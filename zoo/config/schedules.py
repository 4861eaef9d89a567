"""Hyperparameter schedules, written as mappings: `{schedule: linear, start: 3.0e-4, end: 0.0}`.

A schedule is called with the remaining progress, 1 at the start of training and 0 at its end, which is
Stable-Baselines3's convention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vla_gym.errors import BadValue, unknown_name


@dataclass(frozen=True, kw_only=True)
class Linear:
    """A straight line from `start` to `end`."""

    start: float
    """Value at the start of training."""
    end: float = 0.0
    """Value at its end."""

    def __call__(self, progress_remaining: float) -> float:
        return self.end + (self.start - self.end) * progress_remaining


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Half a cosine wave from `start` down to `end`."""

    start: float
    """Value at the start of training."""
    end: float = 0.0
    """Value at its end."""

    def __call__(self, progress_remaining: float) -> float:
        return self.end + (self.start - self.end) * 0.5 * (1.0 - math.cos(math.pi * progress_remaining))


@dataclass(frozen=True, kw_only=True)
class Constant:
    """Always `start`."""

    start: float
    """The value."""

    def __call__(self, progress_remaining: float) -> float:
        return self.start


Schedule = Linear | Cosine | Constant

SCHEDULES: Mapping[str, type[Linear] | type[Cosine] | type[Constant]] = {
    "constant": Constant,
    "linear": Linear,
    "cosine": Cosine,
}
"""Name in a hyperparameter file -> class; the class's fields are the mapping's other keys."""


def build_schedule(value: float | Mapping[str, Any], name: str = "schedule") -> float | Schedule:
    """A number stays a number; a mapping becomes a schedule. `name` starts the error message.

    Raises `UnknownName` for another schedule or key, `BadValue` for what is no number.
    """
    if not isinstance(value, Mapping):
        return _number(value, name)
    rest = dict(value)
    kind = rest.pop("schedule", None)
    if kind not in SCHEDULES:
        raise unknown_name(f"schedule ({name})", str(kind), SCHEDULES)
    cls = SCHEDULES[kind]
    known = tuple(cls.__dataclass_fields__)
    for key in rest:
        if key not in known:
            raise unknown_name(f"setting of a {kind} schedule ({name})", str(key), known)
    if "start" not in rest:
        raise BadValue(f"{name}: a {kind} schedule needs 'start', got {dict(value)!r}")
    return cls(**{key: _number(number, f"{name}.{key}") for key, number in rest.items()})


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadValue(f"{name} must be a number, got {value!r}")
    return float(value)
