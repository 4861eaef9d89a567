"""Start poses of objects, plates and arm: the suite's tables, and the layout of an episode. Needs no simulator.

Grid points are numbered x first: point `6 * i + j` of the 6 x 6 grid. Rows of the tables are the ids that episode ids
are made of, so their order is the published one (object outermost, then plate, then the third slot). Metres, radians.
Source: `PutOnPlateInScene25*` of RL4VLA 55f966d6 and RLinf a3816b59.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vla_gym.adapters.plate25.catalogue import OBJECTS, PLATES, Thing
from vla_gym.adapters.plate25.runs import Episode, Run, Spread, distractor
from vla_gym.adapters.plate25.tasks import Protocol

CENTRE = (-0.16, 0.0)
SIDE = 6
"""Points along each side of a square of 0.15 m: one step is 0.03 m."""
NEAR = 6
"""Squared distance in grid steps that two things lie apart at least: more than 0.070 m is more than 5.4 steps^2."""
FAR = 25
"""The same for 0.15 m, which is 5 steps exactly; see `EDGE_PAIRS`."""
EDGE_PAIRS = frozenset({(6, 28), (6, 33), (7, 29), (7, 34), (8, 35), (9, 30), (10, 24), (10, 31), (11, 25), (11, 32)})
"""Pairs of points (either way round) exactly 0.15 m apart that count as farther than 0.15 m.

The published code compares floating-point norms, which call 10 of the 36 pairs at this distance larger. Which ones is
an accident of rounding, but 2104 triples and every episode id hang on it, so it is written down here.
"""

FLAT = (1.0, 0.0, 0.0, 0.0)
"""Rotation of plates."""
YAWS = tuple(np.pi / 4 * k for k in range(4))
"""Trained yaws of the object (and of an extra one): 0, 45, 90, 135 degrees."""
UNSEEN_YAWS = tuple(-np.pi / 8 * k for k in (1, 3, 5, 7))
"""Yaws of the Position run: -22.5, -67.5, -112.5, -157.5 degrees."""

ARM_OFFSETS = (-0.15, -0.08, 0.0, 0.08, 0.15)
"""Offsets of joints 1-5 in the EEPose run."""
WRIST_OFFSETS = (-0.6, -0.3, 0.0, 0.3, 0.6)
"""Offsets of joint 6."""
MAX_LEAN = 0.25
"""Shoulder and elbow offsets that add up to more are left out."""


def grid_points() -> np.ndarray:
    """Return the trained grid, float64 `[36, 2]`."""
    return _points(_grid_steps())


def ring_points() -> np.ndarray:
    """Return the 28 points one step outside the grid, float64 `[28, 2]`."""
    return _points(_ring_steps())


@functools.cache
def trained_pairs() -> np.ndarray:
    """Return (object, plate) points of the grid more than 0.07 m apart, int64 `[784, 2]`."""
    return _pairs(_grid_steps())


@functools.cache
def ring_pairs() -> np.ndarray:
    """Return (object, plate) points of the ring more than 0.07 m apart, int64 `[628, 2]`."""
    return _pairs(_ring_steps())


@functools.cache
def object_triples() -> np.ndarray:
    """Return (object, plate, third) with object and third more than 0.15 m apart, int64 `[2104, 3]`.

    The third point holds a second object (MultiCarrot) or is where the object is moved to (PositionChangeTo).
    """
    return _triples(lambda a, b, c: _apart(a, b) and _apart(c, b) and _far_apart(a, c))


@functools.cache
def plate_triples() -> np.ndarray:
    """Return (object, plate, second plate) with the plates more than 0.15 m apart, int64 `[2104, 3]`."""
    return _triples(lambda a, b, c: _apart(a, b) and _far_apart(c, b) and _apart(a, c))


@functools.cache
def arm_poses() -> np.ndarray:
    """Return joint offsets of the arm, float64 `[14376, 8]`; row 0 (none) is the trained one, the rest is EEPose's."""
    rows = [(0.0,) * 8]
    for offsets in itertools.product(*(ARM_OFFSETS,) * 5, WRIST_OFFSETS):
        if abs(offsets[1] + offsets[2]) <= MAX_LEAN:
            rows.append((*offsets, 0.0, 0.0))
    return np.array(rows)


def yaw_quaternion(yaw: float) -> np.ndarray:
    """Return a rotation about z as (w, x, y, z), float64 `[4]`."""
    return np.array([np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)])


def _points(steps: list[tuple[int, int]]) -> np.ndarray:
    """Grid steps to metres, in the published order of operations, so that the last bit agrees."""
    return (np.array(steps) / 5 * 2 - 1) * 0.075 + np.array([CENTRE])


def _grid_steps() -> list[tuple[int, int]]:
    return [(i, j) for i in range(SIDE) for j in range(SIDE)]


def _ring_steps() -> list[tuple[int, int]]:
    outer = range(-1, SIDE + 1)
    return [(i, j) for i in outer for j in outer if i in (-1, SIDE) or j in (-1, SIDE)]


def _pairs(steps: list[tuple[int, int]]) -> np.ndarray:
    pairs = itertools.product(range(len(steps)), repeat=2)
    return np.array([(a, b) for a, b in pairs if _squared(steps[a], steps[b]) >= NEAR])


def _triples(allowed: Callable[[int, int, int], bool]) -> np.ndarray:
    points = range(SIDE * SIDE)
    return np.array([triple for triple in itertools.product(points, repeat=3) if allowed(*triple)])


def _apart(a: int, b: int) -> bool:
    return _squared(divmod(a, SIDE), divmod(b, SIDE)) >= NEAR


def _far_apart(a: int, b: int) -> bool:
    squared = _squared(divmod(a, SIDE), divmod(b, SIDE))
    return squared > FAR or (min(a, b), max(a, b)) in EDGE_PAIRS


def _squared(a: tuple[int, int], b: tuple[int, int]) -> int:
    return (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2


@dataclass(frozen=True)
class Place:
    """A position in metres and a rotation (w, x, y, z)."""

    position: tuple[float, float, float]
    rotation: tuple[float, float, float, float]


@dataclass(frozen=True)
class Placed:
    """A thing and the place where it is let go."""

    kind: str
    """"carrot" for an object, "plate": the published names of the folders."""
    index: int
    place: Place

    @property
    def thing(self) -> Thing:
        """Its entry in the catalogue."""
        return (OBJECTS if self.kind == "carrot" else PLATES)[self.index]


@dataclass(frozen=True)
class Layout:
    """The objects and plates of one episode."""

    placed: tuple[Placed, ...]
    """Objects, then plates, each by id: the order in which they are built."""
    target: int
    """Object of the sentence, as an index into `placed`."""
    plate: int
    """Plate of the sentence."""
    moved_to: Place | None
    """Place that the object will be moved to, if it will."""


SPREADS: dict[Spread, tuple[Callable[[], np.ndarray], Callable[[], np.ndarray]]] = {
    "trained": (grid_points, trained_pairs),
    "ring": (ring_points, ring_pairs),
    "object_triples": (grid_points, object_triples),
    "plate_triples": (grid_points, plate_triples),
}
"""Spread -> (points in metres, rows of point numbers)."""


def initial_layout(run: Run, episode: Episode, rules: Protocol) -> Layout:
    """Return the places where the things of an episode begin."""
    points, rows = SPREADS[run.spread]
    points_2 = [points()[point].tolist() for point in rows()[episode.position]]
    heights = rules.heights[run.spread]
    w, i, j, k = yaw_quaternion((*YAWS, *UNSEEN_YAWS)[episode.yaw]).tolist()
    turned = (w, i, j, k)

    def place(index: int, rotation: tuple[float, float, float, float]) -> Place:
        x, y = points_2[index]
        return Place((x, y, heights[index]), rotation)

    target = Placed("carrot", episode.object, place(0, turned))
    plate = Placed("plate", episode.plate, place(1, FLAT))
    things = [target, plate]
    if run.second != "none":
        other = distractor(run, episode, as_published=rules.published_distractor)
        if run.second == "plate":
            things.append(Placed("plate", other, place(2, FLAT)))
        elif other != episode.object:
            things.append(Placed("carrot", other, place(2, turned)))
        else:  # the published slip: the target is also the distractor, and lies in its place
            target = things[0] = Placed("carrot", other, place(2, turned))
    placed = tuple(sorted(things, key=lambda thing: (thing.kind, thing.index)))
    moved_to = place(2, turned) if run.moves else None
    return Layout(placed, placed.index(target), placed.index(plate), moved_to)
