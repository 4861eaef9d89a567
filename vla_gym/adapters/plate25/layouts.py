"""Start poses of objects, plates and arm: the suite's tables, and the layout of an episode. Needs no simulator.

Grid points are numbered x first: point `6 * i + j` of the 6 x 6 grid. Rows of the tables are the ids that episode ids
are made of, so their order is the published one (object outermost, then plate, then the third slot). Metres, radians.
Source: `PutOnPlateInScene25*` of RL4VLA 55f966d6 and RLinf a3816b59.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np

from vla_gym.adapters.plate25.catalogue import OBJECTS, PLATES, Thing
from vla_gym.adapters.plate25.runs import Episode, Run, Spread, distractor
from vla_gym.adapters.plate25.tasks import Protocol

CENTRE = (-0.16, 0.0)
SIDE = 6
"""Points along each side of a square of 0.15 m: one step is 0.03 m."""
GRID_STEPS = np.argwhere(np.ones((SIDE, SIDE), dtype=bool))
RING_STEPS = np.argwhere(np.pad(np.zeros((SIDE, SIDE), dtype=bool), 1, constant_values=True)) - 1
"""The 28 points one step outside the grid."""
GRID, RING = ((steps_P2 / 5 * 2 - 1) * 0.075 + np.array([CENTRE]) for steps_P2 in (GRID_STEPS, RING_STEPS))
"""In metres, in the published order of operations, so that the last bit agrees."""
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


def positions(spread: Spread) -> tuple[np.ndarray, np.ndarray]:
    """Return a spread's points in metres, float64 `[P, 2]`, and its rows of point numbers, int64 `[R, 2 or 3]`.

    A row is (object, plate) or (object, plate, third). The third point holds a second thing (MultiCarrot, MultiPlate)
    or is where the object is moved to (PositionChangeTo).
    """
    return RING if spread == "ring" else GRID, _position_rows()[spread]


@functools.cache
def _position_rows() -> dict[Spread, np.ndarray]:
    squared = _squared_distances(GRID_STEPS)
    apart, far = squared >= NEAR, squared > FAR
    for a, b in EDGE_PAIRS:
        far[a, b] = far[b, a] = True
    object_plate, plate_third, object_third = np.s_[:, :, None], np.s_[None, :, :], np.s_[:, None, :]
    return {
        "trained": np.argwhere(apart),
        "ring": np.argwhere(_squared_distances(RING_STEPS) >= NEAR),
        "object_triples": np.argwhere(apart[object_plate] & apart[plate_third] & far[object_third]),
        "plate_triples": np.argwhere(apart[object_plate] & far[plate_third] & apart[object_third]),
    }


def _squared_distances(steps_P2: np.ndarray) -> np.ndarray:
    return np.square(steps_P2[:, None] - steps_P2).sum(axis=2)


@functools.cache
def arm_poses() -> np.ndarray:
    """Return joint offsets of the arm, float64 `[14376, 8]`; row 0 (none) is the trained one, the rest is EEPose's."""
    offsets = np.array(list(itertools.product(*(ARM_OFFSETS,) * 5, WRIST_OFFSETS)))
    leans_little = np.abs(offsets[:, 1] + offsets[:, 2]) <= MAX_LEAN
    return np.pad(offsets[leans_little], ((1, 0), (0, 2)))


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


def initial_layout(run: Run, episode: Episode, rules: Protocol) -> Layout:
    """Return the places where the things of an episode begin."""
    points, rows = positions(run.spread)
    points_2 = points[rows[episode.position]].tolist()
    heights = rules.heights[run.spread]
    half_yaw = (*YAWS, *UNSEEN_YAWS)[episode.yaw] / 2
    turned = (float(np.cos(half_yaw)), 0.0, 0.0, float(np.sin(half_yaw)))

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
