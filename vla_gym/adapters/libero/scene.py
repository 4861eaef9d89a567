"""What scripted experts read of a LIBERO scene, as one vector: hand, object to be moved, place it must go to.

World frame, metres, quaternions (w, x, y, z). Reading copies numbers that MuJoCo has computed; nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vla_gym.rotations import axes_of

if TYPE_CHECKING:
    import mujoco

    from vla_gym.adapters.libero.goals import Condition
    from vla_gym.adapters.libero.osc import ArmIndex

PLACING = ("on_object", "on_region", "in_region")
"""Kinds of `Condition` that ask for one object to be somewhere."""
SIDES_83 = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
"""The eight corners of a box, in half extents."""


@dataclass(frozen=True, kw_only=True)
class Solid:
    """A body or a region, with a box around it that turns with it."""

    SIZE = 13

    origin_3: np.ndarray
    """The point that goals measure."""
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
    """The part of a scene that picking and placing is about."""

    SIZE = 3 + 4 + 2 * Solid.SIZE

    hand_3: np.ndarray
    """Grip site: the point between the fingers that actions move."""
    hand_quat_4: np.ndarray
    """Its third axis points out of the hand; the fingers close along the second."""
    thing: Solid
    """The object to be moved."""
    target: Solid
    """Where the goal wants it: another object, or a region."""

    def to_vector(self) -> np.ndarray:
        """Float64 `[33]`; `from_vector` reverses it."""
        return np.concatenate(
            [self.hand_3, self.hand_quat_4, self.thing.to_vector(), self.target.to_vector()]
        )

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


def read_scene(
    model: mujoco.MjModel, data: mujoco.MjData, arm: ArmIndex, goal: tuple[Condition, ...]
) -> Scene:
    """The scene of a goal that is one placing; `ValueError` for any other goal."""
    if len(goal) != 1 or goal[0].kind not in PLACING:
        raise ValueError(f"a goal of {[condition.kind for condition in goal]} is no single placing")
    (condition,) = goal
    onto_body = condition.kind == "on_object"
    return Scene(
        hand_3=data.site_xpos[arm.site].copy(),
        hand_quat_4=data.xquat[arm.hand_body].copy(),
        thing=_body(model, data, condition.body),
        target=_body(model, data, condition.target) if onto_body else _region(model, data, condition),
    )


def _body(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> Solid:
    """A body, with the box around its colliding geometries."""
    geoms = np.flatnonzero((model.geom_bodyid == body) & (model.geom_contype != 0))
    middle_G3, half_G3 = np.split(model.geom_aabb[geoms], 2, axis=1)
    own_G83 = middle_G3[:, None] + half_G3[:, None] * SIDES_83
    axes_G33 = np.array([axes_of(quat) for quat in model.geom_quat[geoms]])
    corners_G83 = model.geom_pos[geoms][:, None] + own_G83 @ axes_G33.swapaxes(1, 2)
    low_3, high_3 = corners_G83.min(axis=(0, 1)), corners_G83.max(axis=(0, 1))
    return Solid(
        origin_3=data.xpos[body].copy(),
        quat_4=data.xquat[body].copy(),
        middle_3=(low_3 + high_3) / 2,
        half_3=(high_3 - low_3) / 2,
    )


def _region(model: mujoco.MjModel, data: mujoco.MjData, condition: Condition) -> Solid:
    """A region; it turns with the body it is fixed to."""
    import mujoco

    quat_4 = np.zeros(4)
    mujoco.mju_mat2Quat(quat_4, data.site_xmat[condition.target])
    return Solid(
        origin_3=data.site_xpos[condition.target].copy(),
        quat_4=quat_4,
        middle_3=np.zeros(3),
        half_3=np.asarray(condition.size),
    )
