"""The skills of joints, of LIBERO's expert: drawers are pulled by their bar and pushed shut, knobs and doors turned.

World frame, metres and radians.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np

from vla_gym.adapters.libero.scene import Hand, Moving, Solid
from vla_gym.rotations import axes_of, multiply, turn_between
from zoo.experts.libero_placing import BELOW_TOP, CLOSING, POINTING
from zoo.experts.motion import Command, downward, nearest_yaw, yaw_of

UP = np.array([0.0, 0.0, 1.0])
TILT = math.radians(15.0)
"""By which a hand at a drawer points down, from the level."""
BEFORE = 0.08
"""Metres from a handle, against the hand's direction, at which it is approached."""
DEPTH = 0.012
"""Metres beyond a handle's middle to which the fingers reach around it."""
LEAD = 0.05
"""Metres by which the hand's target leads a drawer: farther, the bar slips out."""
BEYOND = 0.02
"""Metres beyond the wanted position to which a drawer is moved: the arm lags behind."""
ARRIVED, TURNED = 0.012, 0.12
"""Metres and radians within which the hand has arrived."""
HOLD, LET_GO, BACK = 10, 8, 8
"""Steps: until the fingers hold, have let go, and for the way back."""
PATIENCE, TURNING_PATIENCE = 60, 120
"""Steps after which a way is given up, and a knob's turn."""
LEAN = math.radians(25.0)
"""By which a hand at a knob points back to the robot, whose arm would be folded too far to point straight down, and
one at a door away from it, so that the arm reaches the end of the way."""
DOOR, SHUT = 0.1, 0.1
"""Metres of a handle from its axis: nearer is a knob, farther a door; radians beyond the wanted position to which a
door is led, so that it gets there."""
TURN_STEP = 0.35
"""Radians by which a knob's turn is led."""


class Stage(IntEnum):
    """Stages of both skills."""

    APPROACH = 0
    REACH = 1
    HOLD = 2
    MOVE = 3
    LET_GO = 4
    BACK = 5


class DrawerSkill:
    """Pulls a drawer open by its bar, held from above and below; or pushes it shut with closed fingers."""

    def __init__(self) -> None:
        self.stage, self._steps = Stage.APPROACH, 0
        self._direction_3: np.ndarray | None = None
        self._pulls = True

    def command(self, hand: Hand, part: Moving) -> Command | None:
        """Return where the hand should be; None when the hand is back."""
        if self._direction_3 is None:
            self._direction_3 = part.axis_3 * math.copysign(1.0, part.way)
            self._pulls = pulls(part)
        direction_3 = self._direction_3
        outward_3 = direction_3 if self._pulls else -direction_3
        pointing_3 = -math.cos(TILT) * outward_3 - math.sin(TILT) * UP
        level_3 = np.cross(outward_3, UP)
        closing_3 = np.cross(pointing_3, level_3) if self._pulls else level_3
        quat_4 = facing(hand.quat_4, pointing_3, closing_3)
        handle_3 = part.handle.centre_3
        grip_3 = handle_3 + DEPTH * pointing_3
        before_3 = handle_3 - BEFORE * pointing_3
        left = float(part.way * (part.axis_3 @ direction_3))
        point_3 = {
            Stage.APPROACH: before_3,
            Stage.REACH: grip_3,
            Stage.HOLD: grip_3,
            Stage.MOVE: grip_3 + direction_3 * min(LEAD, left + BEYOND),
            Stage.LET_GO: hand.point_3,
            Stage.BACK: hand.point_3 - BEFORE * pointing_3,
        }[self.stage]
        away = float(np.linalg.norm(point_3 - hand.point_3))
        turned = float(np.linalg.norm(turn_between(hand.quat_4, quat_4))) < TURNED
        over = {
            Stage.APPROACH: away < ARRIVED and turned,
            Stage.REACH: away < ARRIVED,
            Stage.HOLD: self._steps >= (HOLD if self._pulls else 0),
            Stage.MOVE: left <= 0.0,
            Stage.LET_GO: self._steps >= (LET_GO if self._pulls else 0),
            Stage.BACK: self._steps >= BACK,
        }[self.stage]
        if over or self._steps >= PATIENCE:
            if self.stage is Stage.BACK:
                return None
            self.stage, self._steps = Stage(self.stage + 1), 0
            return self.command(hand, part)
        self._steps += 1
        holds = self.stage in (Stage.HOLD, Stage.MOVE)
        return Command(point_3=point_3, quat_4=quat_4, closed=holds or not self._pulls)


def pulls(part: Moving) -> bool:
    """Whether the way goes towards the side on which the handle stands out."""
    from_anchor = float((part.handle.centre_3 - part.anchor_3) @ part.axis_3)
    return from_anchor * part.way > 0


class TurningSkill:
    """Takes a knob by its ridge, or a door by its bar, from above and turns the hand with it."""

    def __init__(self) -> None:
        self.stage, self._steps = Stage.APPROACH, 0
        self._yaw: float | None = None

    def command(self, hand: Hand, part: Moving) -> Command | None:
        """Return where the hand should be; None when the hand is back."""
        now, door = yaw_of(hand.quat_4, CLOSING), is_door(part)
        grip_3 = part.handle.centre_3
        grip_3[2] = part.handle.top - BELOW_TOP
        if self._yaw is None or self.stage < Stage.MOVE:
            # The turn is spread to both sides of where the hand is now: its last joint has an end.
            half_way = part.way * part.axis_3[2] / 2
            self._yaw = nearest_yaw(now, narrowest_yaw(part.handle) + half_way, math.pi) - half_way
        yaw = self._yaw
        if self.stage is Stage.MOVE:
            way = part.way + math.copysign(SHUT, part.way) if door else part.way
            turn = float(np.clip(way * part.axis_3[2], -TURN_STEP, TURN_STEP))
            yaw = nearest_yaw(now, narrowest_yaw(part.handle), math.pi) + turn
            cosine, sine = math.cos(turn), math.sin(turn)
            out_2 = (grip_3 - part.anchor_3)[:2]
            grip_3[:2] = part.anchor_3[:2] + np.array([[cosine, -sine], [sine, cosine]]) @ out_2
        point_3 = {
            Stage.APPROACH: grip_3 + BEFORE * UP,
            Stage.BACK: hand.point_3 + BEFORE * UP,
            Stage.LET_GO: hand.point_3,
        }.get(self.stage, grip_3)

        lean = -LEAN if door else LEAN
        quat_4 = multiply(np.array([math.cos(lean / 2), 0.0, math.sin(lean / 2), 0.0]), downward(yaw, POINTING))
        away = float(np.linalg.norm(point_3 - hand.point_3))
        turned = float(np.linalg.norm(turn_between(hand.quat_4, quat_4))) < TURNED
        over = {
            Stage.APPROACH: away < ARRIVED and turned,
            Stage.REACH: away < ARRIVED,
            Stage.HOLD: self._steps >= HOLD,
            Stage.MOVE: part.met and abs(part.way) < TURN_STEP,
            Stage.LET_GO: self._steps >= LET_GO,
            Stage.BACK: self._steps >= BACK,
        }[self.stage]
        if over or self._steps >= (TURNING_PATIENCE if self.stage is Stage.MOVE else PATIENCE):
            if self.stage is Stage.BACK:
                return None
            self._yaw = yaw
            self.stage, self._steps = Stage(self.stage + 1), 0
            return self.command(hand, part)
        self._steps += 1
        return Command(point_3=point_3, quat_4=quat_4, closed=self.stage in (Stage.HOLD, Stage.MOVE))


def is_door(part: Moving) -> bool:
    """Whether a turning part is held far from its axis."""
    return float(np.linalg.norm((part.handle.centre_3 - part.anchor_3)[:2])) > DOOR


def narrowest_yaw(thing: Solid) -> float:
    """Return the direction, seen from above, of a thing's narrowest level axis."""
    axes_33 = axes_of(thing.quat_4)
    upright = int(np.argmax(np.abs(axes_33[2])))
    level = min((axis for axis in range(3) if axis != upright), key=lambda axis: float(thing.half_3[axis]))
    return math.atan2(axes_33[1, level], axes_33[0, level])


def facing(now_4: np.ndarray, pointing_3: np.ndarray, closing_3: np.ndarray) -> np.ndarray:
    """Return the quaternion (w, x, y, z) of a hand that points there and closes along that line, whichever way round
    is the smaller turn from `now_4`."""
    candidates = [_quat_of(sign * closing_3, pointing_3) for sign in (1.0, -1.0)]
    return min(candidates, key=lambda quat_4: float(np.linalg.norm(turn_between(now_4, quat_4))))


def _quat_of(y_3: np.ndarray, z_3: np.ndarray) -> np.ndarray:
    """Quaternion (w, x, y, z) of the rotation whose second and third columns these are (Bar-Itzhack 2000)."""
    m = np.stack([np.cross(y_3, z_3), y_3, z_3], axis=1)
    symmetric_44 = np.array(
        [
            [np.trace(m), m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]],
            [0.0, m[0, 0] - m[1, 1] - m[2, 2], m[0, 1] + m[1, 0], m[0, 2] + m[2, 0]],
            [0.0, 0.0, m[1, 1] - m[0, 0] - m[2, 2], m[1, 2] + m[2, 1]],
            [0.0, 0.0, 0.0, m[2, 2] - m[0, 0] - m[1, 1]],
        ]
    )
    quat_4: np.ndarray = np.linalg.eigh(symmetric_44, UPLO="U")[1][:, -1]
    return quat_4
