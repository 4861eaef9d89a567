"""The part of a LIBERO scene that scripted experts read, as one vector: hand, objects to be moved, their targets.

World frame, metres, quaternions (w, x, y, z). `goals.read_scene` fills it; nothing here loads a simulator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

import numpy as np

from vla_gym.rotations import axes_of

Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True)
class Solid:
    """A body or a region, with a box around it that turns with it."""

    SIZE = 13

    origin_3: np.ndarray
    """Point that goals measure."""
    quat_4: np.ndarray
    middle_3: np.ndarray
    """Middle of the box from the origin, in its own frame."""
    half_3: np.ndarray
    """Half extents of the box."""

    @property
    def centre_3(self) -> np.ndarray:
        """Middle of the box in the world."""
        return self.origin_3 + axes_of(self.quat_4) @ self.middle_3

    @property
    def bottom(self) -> float:
        """Height of the box's lowest corner."""
        return float(self.centre_3[2] - self.extents_3[2])

    @property
    def top(self) -> float:
        """Height of the box's highest corner."""
        return float(self.centre_3[2] + self.extents_3[2])

    @property
    def extents_3(self) -> np.ndarray:
        """Half extents along the world's axes."""
        return np.abs(axes_of(self.quat_4)) @ self.half_3


@dataclass(frozen=True, kw_only=True)
class Hand:
    """The robot's hand."""

    SIZE = 7

    point_3: np.ndarray
    """Grip site: the point between the fingers that actions move."""
    quat_4: np.ndarray
    """Its third axis points out of the hand; the fingers close along the second."""


@dataclass(frozen=True, kw_only=True)
class Placing:
    """One condition of a goal: an object somewhere."""

    SIZE = 1 + 3 * Solid.SIZE

    met: bool
    """Whether it holds now."""
    thing: Solid
    grip: Solid
    """The handle that an elongated object is taken by; else the object."""
    target: Solid
    """Another object or a region, where the goal wants it."""


@dataclass(frozen=True, kw_only=True)
class Moving:
    """One condition of a goal: a joint's position, or a drawer that must be open before something goes in."""

    SIZE = 1 + Solid.SIZE + 1 + 3 + 3 + 1

    met: bool
    handle: Solid
    """The part that a hand takes hold of: a drawer's bar, a knob's ridge."""
    turns: bool
    """Whether the joint turns about its axis; else it slides along it."""
    axis_3: np.ndarray
    anchor_3: np.ndarray
    """A point of a turning joint's axis."""
    way: float
    """From the joint's position to one well inside the condition, metres or radians."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Hand, and the parts that a goal consists of, in the order in which they can be done."""

    MOST = 4
    """Parts of one goal."""
    PART_SIZE = 1 + max(Placing.SIZE, Moving.SIZE)
    SIZE = Hand.SIZE + MOST * PART_SIZE

    hand: Hand
    parts: tuple[Placing | Moving, ...]

    @classmethod
    def places(cls) -> tuple[int, ...]:
        """Indices in `to_vector` of each part's object or handle, and of where an object is to go: x, y, z each."""
        first = 2  # after the part's kind and whether it is met
        return tuple(
            Hand.SIZE + cls.PART_SIZE * part + first + solid + axis
            for part in range(cls.MOST)
            for solid in (0, 2 * Solid.SIZE)
            for axis in range(3)
        )

    def to_vector(self) -> np.ndarray:
        """Float64 `[171]`: the hand, then for each part its kind (1 + index in `_KINDS`) and numbers, then zeros."""
        vector = np.zeros(self.SIZE)
        vector[: Hand.SIZE] = _packed(self.hand)
        for row, part in zip(vector[Hand.SIZE :].reshape(self.MOST, -1), self.parts, strict=False):
            row[0], row[1 : 1 + part.SIZE] = 1 + _KINDS.index(type(part)), _packed(part)
        return vector

    @classmethod
    def from_vector(cls, vector: np.ndarray) -> Scene:
        """Rebuild from `to_vector`."""
        parts = (
            _unpacked(_KINDS[int(row[0]) - 1], iter(row[1:]))
            for row in vector[Hand.SIZE :].reshape(cls.MOST, -1)
            if row[0]
        )
        return cls(hand=_unpacked(Hand, iter(vector)), parts=tuple(parts))


_KINDS: tuple[type[Placing] | type[Moving], ...] = (Placing, Moving)


def _packed(value: Any) -> list[float]:
    if not is_dataclass(value):
        return np.ravel(value).tolist()
    return [number for part in fields(value) for number in _packed(getattr(value, part.name))]


def _unpacked(kind: type[Record], numbers: Iterator[float]) -> Record:
    """Return the record whose numbers come next, as of `_packed`; the end of a field's name is its length."""
    values: dict[str, Any] = {}
    for name, of in get_type_hints(kind).items():
        if hasattr(of, "SIZE"):
            values[name] = _unpacked(of, numbers)
        elif of is np.ndarray:
            values[name] = np.fromiter(numbers, np.float64, int(name[-1]))
        else:
            values[name] = of(next(numbers))
    return kind(**values)
