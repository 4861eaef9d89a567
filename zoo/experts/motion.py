"""Geometry that scripted experts share: targets and orientations of a hand. Metres, radians, z is up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_gym.rotations import axes_of


@dataclass(frozen=True, kw_only=True)
class Body:
    """A pose."""

    position_3: np.ndarray
    quat_4: np.ndarray  # (w, x, y, z)


@dataclass(frozen=True, kw_only=True)
class Aim:
    """Target of a hand."""

    position_3: np.ndarray  # of the point between the fingertips
    finger_yaw: float  # direction of the line through both fingertips, seen from above, modulo half a turn
    opened: bool  # whether the fingers are apart


def body(pose_7: np.ndarray) -> Body:
    """Return the parts of a pose vector: position, then quaternion."""
    return Body(position_3=pose_7[:3], quat_4=pose_7[3:7])


def limited(vector_D: np.ndarray, longest: float) -> np.ndarray:
    """Return the vector, shortened to length `longest` where it is longer."""
    length = float(np.linalg.norm(vector_D))
    return vector_D * (longest / length) if length > longest else vector_D


def funnel(now_3: np.ndarray, goal_3: np.ndarray, *, mouth: float, slope: float, height: float) -> np.ndarray:
    """Return the next point above (or at) the goal, so that the goal is reached from above.

    Within `mouth` of the vertical through the goal that is the goal itself; farther away the point lies `slope`
    metres higher for every metre more, up to `height`.
    """
    away = float(np.hypot(*(now_3 - goal_3)[:2]))
    return goal_3 + np.array([0.0, 0.0, min(height, slope * max(0.0, away - mouth))])


def yaw_of(quat: np.ndarray, axis: int) -> float:
    """Return the direction, seen from above, of an axis of the body with the unit quaternion (w, x, y, z)."""
    x, y, _ = axes_of(quat)[:, axis]
    return float(np.arctan2(y, x))


def narrowest_yaw(quat_4: np.ndarray, size_3: np.ndarray) -> float:
    """Return the direction, seen from above, of the shorter of a box's two most level sides."""
    upright = int(np.argmax(np.abs(axes_of(quat_4)[2])))
    level = [axis for axis in range(3) if axis != upright]
    return yaw_of(quat_4, min(level, key=lambda axis: float(size_3[axis])))


def nearest_yaw(now: float, wanted: float, period: float) -> float:
    """Return the angle nearest to `now` among `wanted` plus multiples of `period`."""
    return wanted + period * round((now - wanted) / period)


def downward(finger_yaw: float, approach: int) -> np.ndarray:
    """Return the quaternion (w, x, y, z) of a hand that points down and opens its fingers, its y axis, at that yaw.

    `approach` is the axis that points down: 2 of a Panda, 0 of a WidowX.
    """
    half = (finger_yaw - np.pi / 2) / 2
    cosine, sine = np.cos(half), np.sin(half)
    if approach == 2:  # half a turn about y, then the yaw
        return np.array([0.0, -sine, cosine, 0.0])
    return np.array([cosine, -sine, cosine, sine]) * np.sqrt(0.5)  # a quarter turn about y, then the yaw
