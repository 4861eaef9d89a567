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
