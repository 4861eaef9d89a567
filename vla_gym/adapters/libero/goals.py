"""LIBERO's goal predicates as data: extracted once from upstream objects, checked on bare MuJoCo.

A goal is a conjunction of `Condition`s; each is plain numbers (ids, sizes, thresholds) that can be written as
JSON beside the compiled model. Source of each formula: LIBERO 8f1084e3 envs/object_states/base_object_states.py
and envs/objects/{site_object,articulated_objects}.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import mujoco
import numpy as np

ON_DISTANCE = 0.03
"""Metres between centres in the plane for one object on another (check_ontop)."""
UNDER_HEIGHT = 0.10
"""Metres above a region's top that still count as on it (SiteObject.under)."""
COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One predicate of a goal. Fields not used by its kind stay empty."""

    kind: str
    """"on_object", "on_region", "in_region" or "joint"."""
    body: int = -1
    """The object that must be somewhere."""
    target: int = -1
    """Body (on_object) or site (regions) it must be at."""
    size: tuple[float, ...] = ()
    """Half extents of the region."""
    contact: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Geoms of both parties that must touch; None when no contact is asked for."""
    qpos: tuple[int, ...] = ()
    """Joint position addresses (joint)."""
    compare: str = ""
    """Comparison of a joint position with `threshold`."""
    threshold: float = 0.0
    every: bool = False
    """Must all joints satisfy it (close, turn off), or any (open, turn on)?"""

    def to_json(self) -> dict[str, Any]:
        """Values JSON can hold; `from_json` reverses it."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Condition:
        """Rebuild from `to_json` after a trip through JSON (lists become tuples again)."""
        tuples = {key: _tuples(value) for key, value in data.items()}
        return cls(**tuples)


def as_comparison(predicate: Callable[[float], bool], candidates: list[float]) -> tuple[str, float]:
    """Write a one-dimensional threshold test as (comparison, threshold), found by asking it around each candidate."""
    around = [(x + step) for x in candidates for step in (-1e-9, 0.0, 1e-9)] + [-10.0, 10.0]
    for threshold in candidates:
        for name, compare in COMPARE.items():
            if all(bool(predicate(x)) == compare(x, threshold) for x in around):
                return name, float(threshold)
    raise NotImplementedError(f"not a threshold test on any of {candidates}")


def holds(conditions: Sequence[Condition], model: mujoco.MjModel, data: mujoco.MjData) -> bool:
    """Is the whole conjunction true in `data`?"""
    return all(CHECKS[condition.kind](condition, model, data) for condition in conditions)


def _on_object(c: Condition, model: mujoco.MjModel, data: mujoco.MjData) -> bool:
    upper, lower = data.xpos[c.body], data.xpos[c.target]
    return bool(
        lower[2] <= upper[2]
        and np.linalg.norm(lower[:2] - upper[:2]) < ON_DISTANCE
        and _touching(c, model, data)
    )


def _on_region(c: Condition, model: mujoco.MjModel, data: mujoco.MjData) -> bool:
    offset = data.site_xmat[c.target].reshape(3, 3) @ (data.xpos[c.body] - data.site_xpos[c.target])
    inside = np.all(np.abs(offset[:2]) < c.size[:2])
    return bool(
        c.size[2] - 0.005 < offset[2] < c.size[2] + UNDER_HEIGHT and inside and _touching(c, model, data)
    )


def _in_region(c: Condition, model: mujoco.MjModel, data: mujoco.MjData) -> bool:
    extent = np.abs(data.site_xmat[c.target].reshape(3, 3) @ np.asarray(c.size))
    position, centre = data.xpos[c.body], data.site_xpos[c.target]
    low = centre - extent
    low[2] -= 0.01
    return bool(np.all(position > low) and np.all(position < centre + extent))


def _joint(c: Condition, model: mujoco.MjModel, data: mujoco.MjData) -> bool:
    met = [COMPARE[c.compare](data.qpos[address], c.threshold) for address in c.qpos]
    return all(met) if c.every else any(met)


def _touching(c: Condition, model: mujoco.MjModel, data: mujoco.MjData) -> bool:
    if c.contact is None:
        return True
    pairs = data.contact.geom[: data.ncon]
    first, second = (np.zeros(model.ngeom, dtype=bool) for _ in range(2))
    first[list(c.contact[0])] = True
    second[list(c.contact[1])] = True
    a, b = pairs[:, 0], pairs[:, 1]
    return bool(np.any((first[a] & second[b]) | (first[b] & second[a])))


CHECKS: dict[str, Callable[[Condition, mujoco.MjModel, mujoco.MjData], bool]] = {
    "on_object": _on_object,
    "on_region": _on_region,
    "in_region": _in_region,
    "joint": _joint,
}


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
