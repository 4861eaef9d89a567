"""LIBERO's goal predicates as data: extracted once from upstream objects, checked on bare MuJoCo.

A goal is a conjunction of `Condition`s, plain numbers (ids, sizes, thresholds) that are stored as JSON beside the
compiled model: renaming a field makes stored ones unreadable. Source of each
formula: LIBERO 8f1084e3 envs/object_states/base_object_states.py and envs/objects/{site_object,articulated_objects}.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

from vla_gym.adapters.libero.osc import ArmIndex
from vla_gym.adapters.libero.scene import Scene, Solid
from vla_gym.rotations import axes_of

ON_DISTANCE = 0.03
"""Metres between centres in the plane for one object on another (check_ontop)."""
UNDER_HEIGHT = 0.10
"""Metres above a region's top that still count as on it (SiteObject.under)."""
PLACING = ("on_object", "on_region", "in_region")
"""Kinds of `Condition` that want one object to be somewhere."""
CORNERS_83 = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
"""Corners of a box, in half extents."""
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
    """Object that must be somewhere."""
    target: int = -1
    """Body (on_object) or site (regions) it must be at."""
    size: tuple[float, ...] = ()
    """Half extents of the region."""
    contact: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Geoms of both parties that must touch; None: no contact is needed."""
    qpos: tuple[int, ...] = ()
    """Joint position addresses (joint)."""
    compare: str = ""
    """Comparison of a joint position with `threshold`."""
    threshold: float = 0.0
    every: bool = False
    """Whether all joints must satisfy it (close, turn off) or any (open, turn on)."""


def as_comparison(predicate: Callable[[float], bool], candidates: list[float]) -> tuple[str, float]:
    """Return a one-dimensional threshold test as (comparison, threshold), found by trying it around each candidate."""
    around = [(x + step) for x in candidates for step in (-1e-9, 0.0, 1e-9)] + [-10.0, 10.0]
    for threshold in candidates:
        for name, compare in COMPARE.items():
            if all(bool(predicate(x)) == compare(x, threshold) for x in around):
                return name, float(threshold)
    raise NotImplementedError(f"not a threshold test on any of {candidates}")


def goal_satisfied(goal: Sequence[Condition], model: mujoco.MjModel, data: mujoco.MjData) -> bool:
    """Whether the whole conjunction is true in `data`."""
    return all(CHECKS[condition.kind](condition, model, data) for condition in goal)


def read_scene(model: mujoco.MjModel, data: mujoco.MjData, arm: ArmIndex, goal: tuple[Condition, ...]) -> Scene:
    """Return the scene of a goal that is one placing, copied from `data`; raise `ValueError` for any other goal."""
    if len(goal) != 1 or goal[0].kind not in PLACING:
        raise ValueError(f"a goal of {[condition.kind for condition in goal]} is no single placing")
    (condition,) = goal
    onto_body = condition.kind == "on_object"
    return Scene(
        hand_3=data.site_xpos[arm.site].copy(),
        hand_quat_4=data.xquat[arm.hand_body].copy(),
        thing=_body(model, data, condition.body),
        target=_body(model, data, condition.target) if onto_body else _region(data, condition),
    )


def _body(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> Solid:
    """A body, with the box around its colliding geometries."""
    geoms = np.flatnonzero((model.geom_bodyid == body) & (model.geom_contype != 0))
    middle_G3, half_G3 = np.split(model.geom_aabb[geoms], 2, axis=1)
    own_G83 = middle_G3[:, None] + half_G3[:, None] * CORNERS_83
    axes_G33 = np.array([axes_of(quat) for quat in model.geom_quat[geoms]])
    corners_G83 = model.geom_pos[geoms][:, None] + own_G83 @ axes_G33.swapaxes(1, 2)
    low_3, high_3 = corners_G83.min(axis=(0, 1)), corners_G83.max(axis=(0, 1))
    return Solid(
        origin_3=data.xpos[body].copy(),
        quat_4=data.xquat[body].copy(),
        middle_3=(low_3 + high_3) / 2,
        half_3=(high_3 - low_3) / 2,
    )


def _region(data: mujoco.MjData, condition: Condition) -> Solid:
    """A region; it turns with the body it is fixed to."""
    quat_4 = np.zeros(4)
    mujoco.mju_mat2Quat(quat_4, data.site_xmat[condition.target])
    return Solid(
        origin_3=data.site_xpos[condition.target].copy(),
        quat_4=quat_4,
        middle_3=np.zeros(3),
        half_3=np.asarray(condition.size),
    )


def _on_object(c: Condition, model: mujoco.MjModel, data: mujoco.MjData) -> bool:
    upper, lower = data.xpos[c.body], data.xpos[c.target]
    return bool(
        lower[2] <= upper[2] and np.linalg.norm(lower[:2] - upper[:2]) < ON_DISTANCE and _touching(c, model, data)
    )


def _on_region(c: Condition, model: mujoco.MjModel, data: mujoco.MjData) -> bool:
    offset = data.site_xmat[c.target].reshape(3, 3) @ (data.xpos[c.body] - data.site_xpos[c.target])
    inside = np.all(np.abs(offset[:2]) < c.size[:2])
    return bool(c.size[2] - 0.005 < offset[2] < c.size[2] + UNDER_HEIGHT and inside and _touching(c, model, data))


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
