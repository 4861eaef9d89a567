"""From an episode to things in places: which objects and plates, where, how turned, how high. Needs no simulator."""

from __future__ import annotations

from dataclasses import dataclass

from vla_gym.adapters.plate25 import layouts
from vla_gym.adapters.plate25.catalogue import OBJECTS, PLATES, Thing
from vla_gym.adapters.plate25.protocols import Protocol
from vla_gym.adapters.plate25.runs import Episode, Run, distractor
from vla_gym.adapters.plate25.suite import SPREADS

FLAT = (1.0, 0.0, 0.0, 0.0)
"""Plates are not turned."""


@dataclass(frozen=True)
class Place:
    """A position in metres and a rotation (w, x, y, z)."""

    position: tuple[float, float, float]
    rotation: tuple[float, float, float, float]


@dataclass(frozen=True)
class Placed:
    """A thing and where it is let go."""

    kind: str
    """"carrot" for an object, "plate": the published names of the folders."""
    index: int
    place: Place

    @property
    def thing(self) -> Thing:
        """Its numbers."""
        return (OBJECTS if self.kind == "carrot" else PLATES)[self.index]


@dataclass(frozen=True)
class Layout:
    """Everything of one episode that can be picked up or put on."""

    placed: tuple[Placed, ...]
    """Objects, then plates, each by id: the order in which they are built."""
    target: int
    """The object the sentence names, as an index into `placed`."""
    plate: int
    """The plate it names."""
    moved_to: Place | None
    """Where the object will be moved to, if it will."""


def lay_out(run: Run, episode: Episode, rules: Protocol) -> Layout:
    """Where the things of an episode begin."""
    points, rows = SPREADS[run.spread]
    at = [points()[point] for point in rows()[episode.position]]
    heights = rules.heights[run.spread]
    turned = layouts.yaw_quaternion((*layouts.YAWS, *layouts.UNSEEN_YAWS)[episode.yaw])
    quaternion = tuple(float(number) for number in turned)

    def place(slot: int, rotation: tuple[float, ...]) -> Place:
        x, y = (float(number) for number in at[slot])
        w, i, j, k = rotation
        return Place((x, y, heights[slot]), (w, i, j, k))

    target = Placed("carrot", episode.object, place(0, quaternion))
    plate = Placed("plate", episode.plate, place(1, FLAT))
    things = [target, plate]
    if run.second != "none":
        other = distractor(run, episode, as_published=rules.published_distractor)
        if run.second == "object" and other == episode.object:
            # The published slip: the target is also the distractor, and lies where that one would.
            target = things[0] = Placed("carrot", other, place(2, quaternion))
        elif run.second == "object":
            things.append(Placed("carrot", other, place(2, quaternion)))
        else:
            things.append(Placed("plate", other, place(2, quaternion)))
    placed = tuple(sorted(things, key=lambda one: (one.kind, one.index)))
    return Layout(
        placed, placed.index(target), placed.index(plate), place(2, quaternion) if run.moves else None
    )
