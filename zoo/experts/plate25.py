"""A controller for ManiSkill-Plate25: grips the object across its narrower side, sets it on the plate, moves away.

Like `zoo.experts.maniskill` it keeps no memory: the present state alone decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_gym.rotations import axes_of, turn_between
from vla_gym.specs import Task
from zoo.experts.motion import Aim, Body, body, downward, funnel, limited, nearest_yaw, yaw_of

APPROACH = 0
"""Axis of the hand that points down."""
LONGEST, WIDEST = 0.04, 0.25
"""Metres and radians commanded in a step of 1/5 s."""
TIPS_BELOW = 0.018
"""Metres that the fingertips are below the point between the fingers, with room to spare."""
GRIP_DEPTH = 0.018
"""Metres below an object's top to which the fingers reach before its top meets the palm."""
TURN_TOLERANCE = 0.15
"""Radians that the fingers may be off before they go down to the object."""
AT_THING = 0.012
"""Metres between hand and grip at which fingers close."""
CLEAR = 0.06
"""Metres above the object at which the hand comes and turns."""
DROP = 0.004
"""Metres above the plate at which the object is let go."""
PLACED = (0.02, 0.02)
"""Metres, level and up, off its place within which the object is let go, and off the plate on which it may stay."""
AWAY = 0.1
"""Metres above the object at which the hand waits once it is done."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """A thing: the pose of its box's middle and the box's sides."""

    middle: Body
    size_3: np.ndarray

    @property
    def half_height(self) -> float:
        """Half of the upright extent, metres."""
        return float(np.abs(axes_of(self.middle.quat_4))[2] @ self.size_3) / 2


@dataclass(frozen=True, kw_only=True)
class PlateView:
    """A privileged observation, see `Plate25Simulator.privileged`; in the frame of the robot's base."""

    hand: Body
    target: Body
    """Commanded pose of the hand, to which actions are relative."""
    gripped: bool
    thing: Box
    plate: Box
    metres: float
    """Meaning of an action of 1."""
    radians: float


def plate_view(privileged_P: np.ndarray) -> PlateView:
    """Split the vector into its parts."""
    hand, target, gripped, thing, plate, units = np.split(privileged_P, [7, 14, 15, 25, 35])
    return PlateView(
        hand=body(hand),
        target=body(target),
        gripped=bool(gripped[0]),
        thing=Box(middle=body(thing), size_3=thing[7:]),
        plate=Box(middle=body(plate), size_3=plate[7:]),
        metres=float(units[0]),
        radians=float(units[1]),
    )


def narrow_yaw(thing: Box) -> float:
    """Return the direction, seen from above, of the shorter of the box's two most level sides."""
    upright = int(np.argmax(np.abs(axes_of(thing.middle.quat_4)[2])))
    level = [axis for axis in range(3) if axis != upright]
    return yaw_of(thing.middle.quat_4, min(level, key=lambda axis: float(thing.size_3[axis])))


def next_aim(view: PlateView) -> Aim:
    """Fetch the object, carry it over the plate, let it go, move up."""
    thing_3, plate_3 = view.thing.middle.position_3, view.plate.middle.position_3
    lift = view.plate.half_height + view.thing.half_height + DROP
    place_3 = plate_3 + np.array([0.0, 0.0, lift])
    level, up = PLACED
    if np.hypot(*(thing_3 - place_3)[:2]) < level and abs(thing_3 - place_3)[2] < up:
        return _go(view, thing_3 + np.array([0.0, 0.0, AWAY]), opened=True)
    if not view.gripped:
        return _fetch(view)
    way_3 = funnel(thing_3, place_3, mouth=0.01, slope=3.0, height=0.06) - thing_3
    return _go(view, view.hand.position_3 + way_3, opened=False)


def _fetch(view: PlateView) -> Aim:
    hand_3, thing_3 = view.hand.position_3, view.thing.middle.position_3
    yaw = yaw_of(view.hand.quat_4, 1)
    side = nearest_yaw(yaw, narrow_yaw(view.thing), np.pi)
    half = view.thing.half_height
    grip_3 = thing_3 + np.array([0.0, 0.0, max(0.0, TIPS_BELOW - half, half - GRIP_DEPTH)])
    over_3 = grip_3 + np.array([0.0, 0.0, half + CLEAR])
    turned = abs(side - yaw) <= TURN_TOLERANCE
    down_3 = funnel(hand_3, grip_3, mouth=0.003, slope=5.0, height=half + CLEAR)
    there = float(np.linalg.norm(grip_3 - hand_3)) <= AT_THING
    return Aim(position_3=down_3 if turned else over_3, finger_yaw=side, opened=not there)


def _go(view: PlateView, position_3: np.ndarray, *, opened: bool) -> Aim:
    return Aim(position_3=position_3, finger_yaw=yaw_of(view.target.quat_4, 1), opened=opened)


def arm_action(view: PlateView, aim: Aim) -> np.ndarray:
    """Return float32 `[7]` in [-1, 1] towards the aim, the hand kept pointing down."""
    way_3 = limited(aim.position_3 - view.target.position_3, LONGEST) / view.metres
    turn_3 = turn_between(view.target.quat_4, downward(aim.finger_yaw, APPROACH))
    turn_3 = limited(turn_3, WIDEST) / view.radians
    return np.array([*way_3, *turn_3, 1.0 if aim.opened else -1.0], dtype=np.float32)


class Plate25Expert:
    """See `zoo.experts.base.Expert`; the task is in the privileged state."""

    def __init__(self, task: Task) -> None:
        del task

    def action(self, privileged_P: np.ndarray) -> np.ndarray:
        """Return one step towards the aim, float32 `[7]`."""
        view = plate_view(privileged_P)
        return arm_action(view, next_aim(view))
