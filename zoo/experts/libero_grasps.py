"""Where the Panda hand takes hold of a thing, from above: pure geometry, world frame, metres and radians."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vla_gym.adapters.libero.scene import Solid
from vla_gym.rotations import axes_of
from zoo.experts.motion import nearest_yaw

WIDEST = 0.035
"""Half the width that fits between the open fingers with some play; they open by 0.038 each."""
BELOW_TOP = 0.018
"""How far below the top of a thing its grip lies: the palm is 0.026 from the grip site."""
ABOVE_BOTTOM = 0.008
"""Least height of a grip over what the thing stands on: the finger pads reach 0.004 below the grip site."""
WALL = 0.003
"""From the outside of a rim to the middle of its wall."""
RIM_AZIMUTH = math.radians(150.0)
"""Side on which a rim is taken, from the world's x axis: towards the robot, and away from the cabinet on its right."""


@dataclass(frozen=True, kw_only=True)
class Grasp:
    """A pose of the hand, pointing down, in which closing the fingers holds a thing."""

    point_3: np.ndarray
    """Grip site."""
    finger_yaw: float
    """Direction of the line through both fingertips, seen from above; a half turn makes no difference."""


def plan_grasp(thing: Solid, hand_yaw: float, rim_azimuth: float = RIM_AZIMUTH) -> Grasp:
    """Across a thing that fits between the fingers, turning the hand as little as that allows; else by its rim.

    Args:
        thing: what to hold.
        hand_yaw: direction of the line through the fingertips now.
        rim_azimuth: where from its middle a rim is taken, seen from above.
    """
    point_3 = thing.centre_3
    point_3[2] = max(thing.top - BELOW_TOP, thing.bottom + ABOVE_BOTTOM)
    yaws = [nearest_yaw(hand_yaw, yaw, math.pi) for yaw in fitting_yaws(thing)]
    if yaws:
        return Grasp(point_3=point_3, finger_yaw=min(yaws, key=lambda yaw: abs(yaw - hand_yaw)))
    radius = float(np.mean(thing.half_3[:2])) - WALL
    point_3[:2] += radius * np.array([math.cos(rim_azimuth), math.sin(rim_azimuth)])
    return Grasp(point_3=point_3, finger_yaw=nearest_yaw(hand_yaw, rim_azimuth, math.pi))


def fitting_yaws(thing: Solid) -> list[float]:
    """Those axes of a thing that lie, and along which the fingers fit around it, as directions seen from above."""
    axes_33 = axes_of(thing.quat_4)
    upright = int(np.argmax(np.abs(axes_33[2])))
    return [
        math.atan2(axes_33[1, axis], axes_33[0, axis])
        for axis in range(3)
        if axis != upright and thing.half_3[axis] <= WIDEST
    ]
