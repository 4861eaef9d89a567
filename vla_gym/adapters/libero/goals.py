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
from vla_gym.adapters.libero.scene import Hand, Moving, Placing, Scene, Solid
from vla_gym.rotations import axes_of

ON_DISTANCE = 0.03
"""Metres between centres in the plane for one object on another (check_ontop)."""
UNDER_HEIGHT = 0.10
"""Metres above a region's top that still count as on it (SiteObject.under)."""
PLACING = ("on_object", "on_region", "in_region")
"""Kinds of `Condition` that want one object to be somewhere."""
OPEN_ENOUGH = 0.75
"""Share of its way by which a drawer is out when something can be put in."""
ELONGATED, FITS = 1.5, 0.035
"""An object has a handle that is that many times as long as broad, and half as broad, in metres, as fingers open."""
DOOR = 0.1
"""Metres between a joint's axis and the middle of what turns about it: more is a door, less a knob."""
WELL_INSIDE = 0.5
"""Where an expert leaves a joint, between the threshold (0) and the end of its range (1)."""
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


def read_scene(model: mujoco.MjModel, data: mujoco.MjData, arm: ArmIndex, goal: Sequence[Condition]) -> Scene:
    """Return the scene of a goal, copied from `data`."""
    hand = Hand(point_3=data.site_xpos[arm.site].copy(), quat_4=data.xquat[arm.hand_body].copy())
    parts = (
        _placing(condition, model, data) if condition.kind in PLACING else _moving(condition, model, data)
        for condition in in_order(goal, model)
    )
    return Scene(hand=hand, parts=tuple(parts))


def in_order(goal: Sequence[Condition], model: mujoco.MjModel) -> list[Condition]:
    """Return the goal's conditions in the order in which they can be done.

    A drawer that something goes into is opened first and closed last.
    """
    placings = [one for one in goal if one.kind in PLACING]
    # What carries another thing comes before that thing.
    carriers = {one.body for one in placings}
    placings.sort(key=lambda one: one.kind == "on_object" and one.target in carriers)
    drawers = [drawer for one in placings if (drawer := _drawer(one, model)) is not None]
    opened = {condition.qpos for condition in drawers}
    last = [one for one in goal if one.kind == "joint" and one.qpos in opened and one.every]
    first = [one for one in goal if one.kind == "joint" and one not in last]
    first.sort(key=lambda one: not one.every)
    opening = {one.qpos for one in first}
    return [*first, *(drawer for drawer in drawers if drawer.qpos not in opening), *placings, *last]


def _drawer(placing: Condition, model: mujoco.MjModel) -> Condition | None:
    """The condition that the drawer of a placing is open enough; None where it goes elsewhere."""
    if placing.kind != "in_region":
        return None
    body = model.site_bodyid[placing.target]
    joint = model.body_jntadr[body]
    if joint < 0 or model.jnt_type[joint] != mujoco.mjtJoint.mjJNT_SLIDE:
        return None
    open_end = min(model.jnt_range[joint], key=lambda end: -abs(end))
    compare = "<" if open_end < 0 else ">"
    qpos = (int(model.jnt_qposadr[joint]),)
    return Condition(kind="joint", qpos=qpos, compare=compare, threshold=float(OPEN_ENOUGH * open_end))


def _moving(condition: Condition, model: mujoco.MjModel, data: mujoco.MjData) -> Moving:
    joint = int(np.flatnonzero(model.jnt_qposadr == condition.qpos[0])[0])
    end = model.jnt_range[joint][int(condition.compare in (">", ">="))]
    wanted = condition.threshold + WELL_INSIDE * (end - condition.threshold)
    turns = model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_HINGE
    axis_3, anchor_3, body = data.xaxis[joint].copy(), data.xanchor[joint].copy(), int(model.jnt_bodyid[joint])
    # A drawer or a door is held by what stands out on the side to which it opens, a knob by what does along its axis.
    outward_3 = axis_3 * np.sign(min(model.jnt_range[joint], key=lambda one: -abs(one)))
    if turns:
        middle_3 = _body(model, data, body).centre_3 if len(_colliding(model, body)) else anchor_3
        opens_3 = np.cross(outward_3, middle_3 - anchor_3)
        outward_3 = _nearest_axis(data.xquat[body], opens_3) if np.linalg.norm(opens_3) > DOOR else axis_3
    return Moving(
        met=_joint(condition, model, data),
        handle=_handle(model, data, body, outward_3),
        turns=bool(turns),
        axis_3=axis_3,
        anchor_3=anchor_3,
        way=float(wanted - data.qpos[condition.qpos[0]]),
    )


def _nearest_axis(quat_4: np.ndarray, direction_3: np.ndarray) -> np.ndarray:
    """The axis of a body, or its reverse, that points most nearly in a direction."""
    axes_33 = axes_of(quat_4)
    along_3 = direction_3 @ axes_33
    best = int(np.argmax(np.abs(along_3)))
    return axes_33[:, best] * np.sign(along_3[best])


def _handle(model: mujoco.MjModel, data: mujoco.MjData, body: int, outward_3: np.ndarray) -> Solid:
    """The colliding geometry of a body that reaches farthest outward; without any, the body's origin."""
    geoms = _colliding(model, body)
    if not len(geoms):
        nothing_3 = np.zeros(3)
        return Solid(
            origin_3=data.xpos[body].copy(), quat_4=data.xquat[body].copy(), middle_3=nothing_3, half_3=nothing_3
        )
    axes_G33 = data.geom_xmat[geoms].reshape(-1, 3, 3)
    middle_G3, half_G3 = np.split(model.geom_aabb[geoms], 2, axis=1)
    centre_G3 = data.geom_xpos[geoms] + np.einsum("gij,gj->gi", axes_G33, middle_G3)
    reach_G = centre_G3 @ outward_3 + (np.abs(outward_3 @ axes_G33) * half_G3).sum(axis=1)
    best = int(np.argmax(reach_G))
    quat_4 = np.zeros(4)
    mujoco.mju_mat2Quat(quat_4, data.geom_xmat[geoms[best]])
    return Solid(
        origin_3=data.geom_xpos[geoms[best]].copy(), quat_4=quat_4, middle_3=middle_G3[best], half_3=half_G3[best]
    )


def _placing(condition: Condition, model: mujoco.MjModel, data: mujoco.MjData) -> Placing:
    onto_body = condition.kind == "on_object"
    thing = _body(model, data, condition.body)
    short, long = sorted(thing.half_3[np.argsort(np.abs(axes_of(thing.quat_4)[2]))[:2]])
    elongated = long > ELONGATED * short and short > FITS
    away_3 = thing.centre_3 - thing.origin_3
    return Placing(
        met=CHECKS[condition.kind](condition, model, data),
        thing=thing,
        grip=_handle(model, data, condition.body, away_3 * [1.0, 1.0, 0.0]) if elongated else thing,
        target=_body(model, data, condition.target) if onto_body else _region(data, condition),
    )


def _body(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> Solid:
    geoms = _colliding(model, body)
    middle_G3, half_G3 = np.split(model.geom_aabb[geoms], 2, axis=1)
    own_G83 = middle_G3[:, None] + half_G3[:, None] * CORNERS_83
    geom_axes_G33 = data.geom_xmat[geoms].reshape(-1, 3, 3)
    world_G83 = data.geom_xpos[geoms][:, None] + own_G83 @ geom_axes_G33.swapaxes(1, 2)
    corners_G83 = (world_G83 - data.xpos[body]) @ data.xmat[body].reshape(3, 3)
    low_3, high_3 = corners_G83.min(axis=(0, 1)), corners_G83.max(axis=(0, 1))
    return Solid(
        origin_3=data.xpos[body].copy(),
        quat_4=data.xquat[body].copy(),
        middle_3=(low_3 + high_3) / 2,
        half_3=(high_3 - low_3) / 2,
    )


def _colliding(model: mujoco.MjModel, body: int) -> np.ndarray:
    """Ids of the geometries of a body, and of what is fixed to it, that others collide with."""
    bodies = [body]
    for child in range(body + 1, model.nbody):  # a parent comes before its children
        if model.body_parentid[child] in bodies and not model.body_jntnum[child]:
            bodies.append(child)
    collides = (model.geom_contype | model.geom_conaffinity) != 0
    return np.flatnonzero(np.isin(model.geom_bodyid, bodies) & collides)


def _region(data: mujoco.MjData, condition: Condition) -> Solid:
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
