"""The part of a LIBERO scene that scripted experts read, as one vector: hand, object to be moved, its target.

World frame, metres, quaternions (w, x, y, z). `goals.read_scene` fills it; nothing here loads a simulator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_gym.rotations import axes_of


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

    def to_vector(self) -> np.ndarray:
        """Float64 `[13]`; `from_vector` reverses it."""
        return np.concatenate([self.origin_3, self.quat_4, self.middle_3, self.half_3])

    @classmethod
    def from_vector(cls, vector: np.ndarray) -> Solid:
        """Rebuild from `to_vector`."""
        origin_3, quat_4, middle_3, half_3 = np.split(vector, [3, 7, 10])
        return cls(origin_3=origin_3, quat_4=quat_4, middle_3=middle_3, half_3=half_3)

    @property
    def centre_3(self) -> np.ndarray:
        """Middle of the box in the world."""
        centre_3: np.ndarray = self.origin_3 + axes_of(self.quat_4) @ self.middle_3
        return centre_3

    @property
    def bottom(self) -> float:
        """Height of the box's lowest corner."""
        return float(self.centre_3[2] - self._half_height)

    @property
    def top(self) -> float:
        """Height of the box's highest corner."""
        return float(self.centre_3[2] + self._half_height)

    @property
    def _half_height(self) -> float:
        return float(np.abs(axes_of(self.quat_4)[2]) @ self.half_3)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The part of a scene that picking and placing is about; a goal that is one placing is described whole."""

    SIZE = 3 + 4 + 2 * Solid.SIZE

    hand_3: np.ndarray
    """Grip site: the point between the fingers that actions move."""
    hand_quat_4: np.ndarray
    """Its third axis points out of the hand; the fingers close along the second."""
    thing: Solid
    """The object to be moved."""
    target: Solid
    """Another object or a region, where the goal wants it."""

    def to_vector(self) -> np.ndarray:
        """Float64 `[33]`; `from_vector` reverses it."""
        return np.concatenate([self.hand_3, self.hand_quat_4, self.thing.to_vector(), self.target.to_vector()])

    @classmethod
    def from_vector(cls, vector: np.ndarray) -> Scene:
        """Rebuild from `to_vector`."""
        hand_3, hand_quat_4, thing, target = np.split(vector, [3, 7, 7 + Solid.SIZE])
        return cls(
            hand_3=hand_3,
            hand_quat_4=hand_quat_4,
            thing=Solid.from_vector(thing),
            target=Solid.from_vector(target),
        )
