"""Rotation formats as NumPy arrays; fresh arrays out, inputs never changed."""

from __future__ import annotations

import math

import numpy as np


def axis_angle_from_quat_xyzw(quat: np.ndarray) -> np.ndarray:
    """Unit quaternion `[4]` (x, y, z, w) to axis-angle `[3]`, radians, the angle in [0, 2 pi].

    robosuite's convention (utils/transform_utils.py:quat2axisangle), which the checkpoints were trained on: the
    sign of w is kept. Flipping it first, as most libraries do, costs OpenVLA-OFT 14 points on LIBERO-Goal.
    """
    w = min(1.0, max(-1.0, float(quat[3])))
    sine = math.sqrt(1.0 - w * w)
    if math.isclose(sine, 0.0):
        return np.zeros(3)
    return np.asarray(quat[:3], dtype=np.float64) * 2.0 * math.acos(w) / sine


def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Product of two quaternions (w, x, y, z): first `b`, then `a`."""
    w, x, y, z = a
    return np.array([[w, -x, -y, -z], [x, w, -z, y], [y, z, w, -x], [z, -y, x, w]]) @ b


def turn_between(now: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Axis times angle `[3]`, radians up to pi, that turns one unit quaternion (w, x, y, z) into another."""
    w, *axis = multiply(wanted, now * np.array([1.0, -1.0, -1.0, -1.0]))
    sine = float(np.linalg.norm(axis))
    if math.isclose(sine, 0.0, abs_tol=1e-12):
        return np.zeros(3)
    return np.array(axis) / sine * 2.0 * math.copysign(math.atan2(sine, abs(w)), w)


def axes_of(quat: np.ndarray) -> np.ndarray:
    """Rotation matrix `[3, 3]` of a unit quaternion (w, x, y, z): column k is where axis k points."""
    w, x, y, z = quat
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
