"""Start states of LIBERO's tasks drawn from the regions of their task files, as upstream's samplers draw them.

What upstream knows of a task is kept as plain numbers (`libero_samplers` reads them); drawing is pure. World frame,
metres, radians. Source: LIBERO 8f1084e3 envs/regions/*.py and envs/bddl_base_domain.py:_reset_internal.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from vla_gym.rotations import multiply

ARM_NOISE = 0.02
"""Deviation of every arm joint at the start, radians: robosuite's initialization_noise="default", and what the
published start states show (0.0185 to 0.0218 for each of the joints over each suite's rows)."""
MOST_TRIES = 5000
"""Places tried for one object before the whole scene is drawn anew; upstream's number."""
MOST_SCENES = 100
"""Scenes tried; upstream goes on for ever."""


class Uniform(Protocol):
    """What draws: `numpy.random.Generator`, and `numpy.random.RandomState` where upstream's own stream is wanted."""

    def random(self) -> float:
        """Uniform in [0, 1)."""


@dataclass(frozen=True, kw_only=True)
class JointSpan:
    """Joints that start in one place drawn from a range: an open drawer, a knob turned on."""

    qpos: tuple[int, ...]
    """Addresses of their positions; all get the same one."""
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Ride:
    """How the place that something is put into moves with a drawn joint."""

    span: int
    """Which `JointSpan`."""
    way_3: tuple[float, float, float]
    """From its place with the joint at `low` to that with the joint at `high`."""


@dataclass(frozen=True, kw_only=True)
class Placing:
    """One object, and where it may start; fixtures stay where they are and are only in the way."""

    name: str
    qpos: int | None
    """Address of its free joint's position and quaternion; None for a fixture."""
    base_3: tuple[float, float, float]
    """What the ranges are relative to; its height is that of the object's origin."""
    on: str | None = None
    """Name of the object, placed before, whose origin `base_3` is relative to; None: the world's."""
    ride: Ride | None = None
    x_range: tuple[float, float] = (0.0, 0.0)
    """As drawn from, the object's radius taken off both ends where upstream does. The first may be the larger: LIBERO's
    regions are often narrower than the objects."""
    y_range: tuple[float, float] = (0.0, 0.0)
    turns: tuple[tuple[str, float, float], ...] = ()
    """(axis, low, high) of rotations that follow each other."""
    keeps_clear: bool = False
    """May it not overlap what is placed already?"""
    radius: float
    """Of the upright cylinder that stands for it."""
    bottom: float
    """Lower end of that cylinder, from the object's origin."""
    top: float


@dataclass(frozen=True, kw_only=True)
class StartRegions:
    """All that the start states of a task are drawn from."""

    qpos: tuple[float, ...]
    """Positions after upstream's reset `[nq]`: what is not drawn stays so."""
    num_velocities: int
    arm: tuple[int, ...]
    """Addresses of the arm's joint positions."""
    spans: tuple[JointSpan, ...]
    placings: tuple[Placing, ...]
    """In upstream's order."""

    def to_json(self) -> dict[str, Any]:
        """Values JSON can hold; `from_json` reverses it."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StartRegions:
        """Rebuild from `to_json` after a trip through JSON (lists become tuples again)."""
        return cls(
            qpos=tuple(data["qpos"]),
            num_velocities=data["num_velocities"],
            arm=tuple(data["arm"]),
            spans=tuple(JointSpan(**{**span, "qpos": tuple(span["qpos"])}) for span in data["spans"]),
            placings=tuple(_placing(placing) for placing in data["placings"]),
        )


def start_generator(suite: str, task: str, split: str, trial: int) -> np.random.Generator:
    """The stream of one start state: the same everywhere, another one for any other arguments."""
    words = "\0".join((suite, task, split, str(trial)))
    digest = hashlib.blake2b(words.encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def draw_start(regions: StartRegions, rng: np.random.Generator) -> np.ndarray:
    """A start state in the form of a published one, float64 `[1 + nq + nv]`: time 0, positions, velocities 0.

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


def draw_poses(placings: Sequence[Placing], shares: Sequence[float], rng: Uniform) -> dict[int, np.ndarray]:
    """Address -> position and quaternion `[7]` of every object that is no fixture.

    Args:
        placings: in the order in which they are placed.
        shares: where each `JointSpan` stands, 0 at its low end and 1 at its high end.
        rng: gives, for every place tried, x and y; then one angle for each turn.
    """
    for _ in range(MOST_SCENES):
        placed: dict[str, tuple[Placing, np.ndarray]] = {}
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
    placing: Placing,
    placed: dict[str, tuple[Placing, np.ndarray]],
    shares: Sequence[float],
    rng: Uniform,
) -> np.ndarray | None:
    """A position `[3]` clear of what is placed; None where none was found."""
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
        if not placing.keeps_clear or not any(
            _overlap(placing, position_3, *other) for other in placed.values()
        ):
            return position_3
    return None


def _overlap(placing: Placing, position_3: np.ndarray, other: Placing, other_3: np.ndarray) -> bool:
    """Upstream's test; it looks at the height of the one placed later only, and so takes it for the higher one."""
    apart_3 = position_3 - other_3
    near = math.hypot(apart_3[0], apart_3[1]) <= other.radius + placing.radius
    return near and bool(apart_3[2] <= other.top - placing.bottom)


def _draw_quat(placing: Placing, rng: Uniform) -> np.ndarray:
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


def _placing(data: dict[str, Any]) -> Placing:
    lists = {key: tuple(data[key]) for key in ("base_3", "x_range", "y_range")}
    ride = data["ride"] and Ride(span=data["ride"]["span"], way_3=tuple(data["ride"]["way_3"]))
    turns = tuple((axis, low, high) for axis, low, high in data["turns"])
    return Placing(**{**data, **lists, "ride": ride, "turns": turns})
