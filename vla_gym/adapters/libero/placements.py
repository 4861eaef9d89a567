"""Start states of LIBERO's tasks drawn from the regions of their task files, as upstream's samplers draw them.

Upstream's ranges are kept as plain numbers (`upstream.read_start_regions`) and stored as JSON under the names of these
fields; drawing is pure. World frame, metres, radians. Source: LIBERO 8f1084e3 envs/regions/*.py and
envs/bddl_base_domain.py:_reset_internal.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_gym.rotations import multiply

ARM_NOISE = 0.02
"""Deviation of every arm joint at the start, radians: robosuite's initialization_noise="default", and what the
published start states show (0.0185 to 0.0218 for each of the joints over each suite's rows)."""
MOST_TRIES = 5000
"""Places tried for one object before the whole scene is drawn anew; upstream's number."""
MOST_SCENES = 100
"""Scenes tried; upstream goes on for ever."""


@dataclass(frozen=True, kw_only=True)
class JointSpan:
    """Joints that start in one place drawn from a range: an open drawer, a knob turned on."""

    qpos: tuple[int, ...]
    """Addresses of their positions; all get the same one."""
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Ride:
    """The motion of a place with a drawn joint."""

    span: int
    """Index of the `JointSpan`."""
    way_3: tuple[float, float, float]
    """From the place with the joint at `low` to that with the joint at `high`."""


@dataclass(frozen=True, kw_only=True)
class StartRange:
    """One object and the range it may start in; a fixture is an obstacle that stays in its place."""

    name: str
    qpos: int | None
    """Address of its free joint's position and quaternion; None for a fixture."""
    base_3: tuple[float, float, float]
    """Origin of the ranges; its height is that of the object's origin."""
    on: str | None = None
    """Name of an object placed before, whose origin `base_3` is relative to; None: the world's."""
    ride: Ride | None = None
    x_range: tuple[float, float] = (0.0, 0.0)
    """The object's radius is taken off both ends where upstream does so. The first may be the larger: LIBERO's regions
    are often narrower than the objects."""
    y_range: tuple[float, float] = (0.0, 0.0)
    turns: tuple[tuple[str, float, float], ...] = ()
    """(axis, low, high) of rotations that follow each other."""
    keeps_clear: bool = False
    """Whether it must not overlap an object placed before."""
    radius: float
    """Of the object's upright cylinder."""
    bottom: float
    """Lower end of that cylinder, from the object's origin."""
    top: float


@dataclass(frozen=True, kw_only=True)
class StartRegions:
    """The ranges that the start states of a task are drawn from."""

    qpos: tuple[float, ...]
    """Positions after upstream's reset `[nq]`; those that are not drawn stay."""
    num_velocities: int
    arm: tuple[int, ...]
    """Addresses of the arm's joint positions."""
    spans: tuple[JointSpan, ...]
    placings: tuple[StartRange, ...]
    """In upstream's order."""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StartRegions:
        """Rebuild from `dataclasses.asdict` after a trip through a cached file."""
        placings = (
            StartRange(**{**placing, "ride": placing["ride"] and Ride(**placing["ride"])})
            for placing in data["placings"]
        )
        spans = tuple(JointSpan(**span) for span in data["spans"])
        return cls(**{**data, "spans": spans, "placings": tuple(placings)})


def start_generator(suite: str, task: str, split: str, trial: int) -> np.random.Generator:
    """Return the stream of one start state: the same everywhere, another one for any other arguments."""
    words = "\0".join((suite, task, split, str(trial)))
    digest = hashlib.blake2b(words.encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def draw_start(regions: StartRegions, rng: np.random.Generator) -> np.ndarray:
    """Return a start state in the form of a published one, float64 `[1 + nq + nv]`: time 0, positions, velocities 0.

    Raises `RuntimeError` where no scene was found in which nothing overlaps.
    """
    qpos = np.array(regions.qpos)
    qpos[list(regions.arm)] += ARM_NOISE * rng.standard_normal(len(regions.arm))
    shares = [rng.random() for _ in regions.spans]
    for span, share in zip(regions.spans, shares, strict=True):
        qpos[list(span.qpos)] = _between((span.low, span.high), share)
    for address, pose_7 in draw_poses(regions.placings, shares, rng).items():
        qpos[address : address + 7] = pose_7
    return np.concatenate([[0.0], qpos, np.zeros(regions.num_velocities)])


def draw_poses(
    placings: Sequence[StartRange], shares: Sequence[float], rng: np.random.Generator
) -> dict[int, np.ndarray]:
    """Draw address -> position and quaternion `[7]` of every object that is no fixture.

    Args:
        placings: in the order in which they are placed.
        shares: position of each `JointSpan`, 0 at its low end and 1 at its high end.
        rng: gives, for every place tried, x and y; then one angle for each turn.
    """
    for _ in range(MOST_SCENES):
        placed: dict[str, tuple[StartRange, np.ndarray]] = {}
        poses: dict[int, np.ndarray] = {}
        for placing in placings:
            position_3 = _find_place(placing, placed, shares, rng)
            if position_3 is None:
                break
            placed[placing.name] = placing, position_3
            if placing.qpos is not None:
                poses[placing.qpos] = np.concatenate([position_3, _draw_quat(placing, rng)])
        else:
            return poses
    raise RuntimeError(f"no room for {placing.name} in {MOST_SCENES} scenes")


def _find_place(
    placing: StartRange,
    placed: dict[str, tuple[StartRange, np.ndarray]],
    shares: Sequence[float],
    rng: np.random.Generator,
) -> np.ndarray | None:
    """A position `[3]` clear of the placed objects; None where none was found."""
    base_3 = np.array(placing.base_3)
    if placing.on is not None:
        base_3 += placed[placing.on][1]
    if placing.ride is not None:
        base_3 += shares[placing.ride.span] * np.array(placing.ride.way_3)
    if placing.qpos is None:
        return base_3
    for _ in range(MOST_TRIES):
        x, y = _between(placing.x_range, rng.random()), _between(placing.y_range, rng.random())
        position_3 = base_3 + np.array([x, y, 0.0])
        if not placing.keeps_clear or not any(_overlap(placing, position_3, *other) for other in placed.values()):
            return position_3
    return None


def _overlap(placing: StartRange, position_3: np.ndarray, other: StartRange, other_3: np.ndarray) -> bool:
    """Upstream's test, which takes the object placed later for the higher one."""
    apart_3 = position_3 - other_3
    near = math.hypot(apart_3[0], apart_3[1]) <= other.radius + placing.radius
    return near and bool(apart_3[2] <= other.top - placing.bottom)


def _draw_quat(placing: StartRange, rng: np.random.Generator) -> np.ndarray:
    """Quaternion `[4]` as upstream writes it: (x, y, z, w), into the place where MuJoCo reads (w, x, y, z).

    The published start states have it so, and the objects' axes and angles are chosen for it.
    """
    quat_xyzw = np.array([0.0, 0.0, 0.0, 1.0])
    for axis, low, high in placing.turns:
        half = _between((low, high), rng.random()) / 2
        turn_xyzw = np.array([0.0, 0.0, 0.0, math.cos(half)])
        turn_xyzw["xyz".index(axis)] = math.sin(half)
        quat_xyzw = np.roll(multiply(np.roll(turn_xyzw, 1), np.roll(quat_xyzw, 1)), -1)
    return quat_xyzw


def _between(ends: tuple[float, float], share: float) -> float:
    return ends[0] + (ends[1] - ends[0]) * share
