"""Expert for LIBERO: does the parts of a goal one after the other, each by the skill for its kind.

Things are placed (`zoo.experts.libero_placing`), drawers pulled by their bar and pushed shut, knobs and doors turned,
and flat dishes dragged by their rim along the table. The expert acts through the seven numbers that policies have: way
and turn over the controller's range, and the gripper's sign. World frame, metres and radians.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from enum import IntEnum
from typing import Any, ClassVar, Protocol

import numpy as np

from vla_gym.adapters.libero.scene import Hand, Moving, Placing, Scene
from vla_gym.adapters.libero.tasks import ACTION_SCALE
from vla_gym.rotations import multiply, turn_between
from vla_gym.specs import Task
from zoo.experts.libero_placing import (
    ABOVE,
    BELOW_TOP,
    CLOSING,
    POINTING,
    RIM_AZIMUTH,
    WIDEST,
    HandCommand,
    PlacingSkill,
    own_place,
)
from zoo.experts.motion import downward, limited, narrowest_yaw, nearest_yaw, yaw_of

DRAWER_AZIMUTH = math.radians(117.0)  # where a bowl in the drawer is taken: the outer finger has room in that corner
OPEN, CLOSE = -1.0, 1.0
UP = np.array([0.0, 0.0, 1.0])
ARRIVED, TURNED = 0.012, 0.12  # within which the hand has arrived
BEFORE = 0.08  # from a handle, against the hand's direction, at which it is approached
HOLD, LET_GO, BACK = 10, 8, 8  # steps: until the fingers hold, have let go, and for the way back

TILT = math.radians(15.0)  # by which a hand at a drawer points down, from the level
DEPTH = 0.012  # beyond a handle's middle to which the fingers reach around it
DRAWER_LEAD = 0.05  # by which the hand's target leads a drawer: farther, the bar slips out
BEYOND = 0.02  # beyond the wanted position to which a drawer is moved: the arm lags behind

LEAN = math.radians(25.0)
"""By which a hand at a knob points back to the robot, whose arm would be folded too far to point straight down, and
one at a door away from it, so that the arm reaches the end of the way."""
DOOR = 0.1  # of a handle from its axis: nearer is a knob, farther a door
SHUT = 0.1  # beyond the wanted position to which a door is led, so that it gets there
TURN_STEP = 0.35  # by which a knob's turn is led

FLAT = 0.02  # half height of what is dragged, not lifted: the fingers cannot reach below so low a rim
WITHIN = 0.2  # where fingers come down, from the dish's middle towards its rim (1); nearer to it they tip the dish
FINGERTIPS = 0.006  # height of the grip site's target over the table; the dish's floor stops it a little higher
DOWN = 0.017  # height of the grip site over the table below which it has come down
DISH_LEAD = 0.08  # by which the hand's target leads the dish


class Skill(Protocol):
    """Does one part of a goal, a step at a time."""

    def command(self, hand: Hand, part: Any) -> HandCommand | None:
        """Return where the hand should be; None when there is nothing more to do."""


class SkillStage(IntEnum):
    """Stages of a `StagedSkill` in their order."""

    APPROACH = 0
    REACH = 1
    HOLD = 2
    MOVE = 3
    LET_GO = 4
    BACK = 5


class StagedSkill(ABC):
    """Goes through `SkillStage` once; a `Skill`."""

    patience: ClassVar[dict[SkillStage, int]] = {}
    """Steps after which a stage is given up, where they are not 60."""

    def __init__(self) -> None:
        self.stage, self._steps = SkillStage.APPROACH, 0

    def command(self, hand: Hand, part: Any) -> HandCommand | None:
        command, over = self._next(hand, part)
        if over or self._steps >= self.patience.get(self.stage, 60):
            if self.stage is SkillStage.BACK:
                return None
            self.stage, self._steps = SkillStage(self.stage + 1), 0
            return self.command(hand, part)
        self._steps += 1
        return command

    @abstractmethod
    def _next(self, hand: Hand, part: Any) -> tuple[HandCommand, bool]:
        """Return the command of the present stage, and whether the stage is over."""


class DrawerSkill(StagedSkill):
    """Pulls a drawer open by its bar, held from above and below; or pushes it shut with closed fingers."""

    def __init__(self) -> None:
        super().__init__()
        self._direction_3: np.ndarray | None = None
        self._pulls = True

    def _next(self, hand: Hand, part: Moving) -> tuple[HandCommand, bool]:
        if self._direction_3 is None:
            self._direction_3 = part.axis_3 * math.copysign(1.0, part.way)
            # Whether the way goes towards the side on which the handle stands out.
            self._pulls = float((part.handle.centre_3 - part.anchor_3) @ part.axis_3) * part.way > 0
        direction_3 = self._direction_3
        outward_3 = direction_3 if self._pulls else -direction_3
        pointing_3 = -math.cos(TILT) * outward_3 - math.sin(TILT) * UP
        level_3 = np.cross(outward_3, UP)
        closing_3 = np.cross(pointing_3, level_3) if self._pulls else level_3
        quat_4 = facing(hand.quat_4, pointing_3, closing_3)
        grip_3 = part.handle.centre_3 + DEPTH * pointing_3
        left = float(part.way * (part.axis_3 @ direction_3))
        point_3 = {
            SkillStage.APPROACH: part.handle.centre_3 - BEFORE * pointing_3,
            SkillStage.REACH: grip_3,
            SkillStage.HOLD: grip_3,
            SkillStage.MOVE: grip_3 + direction_3 * min(DRAWER_LEAD, left + BEYOND),
            SkillStage.LET_GO: hand.point_3,
            SkillStage.BACK: hand.point_3 - BEFORE * pointing_3,
        }[self.stage]
        arrived = _distance(point_3, hand) < ARRIVED
        over = {
            SkillStage.APPROACH: arrived and _is_turned(hand, quat_4),
            SkillStage.REACH: arrived,
            SkillStage.HOLD: self._steps >= (HOLD if self._pulls else 0),
            SkillStage.MOVE: left <= 0.0,
            SkillStage.LET_GO: self._steps >= (LET_GO if self._pulls else 0),
            SkillStage.BACK: self._steps >= BACK,
        }[self.stage]
        closed = self.stage in (SkillStage.HOLD, SkillStage.MOVE) or not self._pulls
        return HandCommand(point_3=point_3, quat_4=quat_4, closed=closed), over


class TurningSkill(StagedSkill):
    """Takes a knob by its ridge, or a door by its bar, from above and turns the hand with it."""

    patience: ClassVar[dict[SkillStage, int]] = {SkillStage.MOVE: 120}

    def __init__(self) -> None:
        super().__init__()
        self._yaw: float | None = None

    def _next(self, hand: Hand, part: Moving) -> tuple[HandCommand, bool]:
        now, narrowest = yaw_of(hand.quat_4, CLOSING), narrowest_yaw(part.handle.quat_4, part.handle.half_3)
        door = float(np.linalg.norm((part.handle.centre_3 - part.anchor_3)[:2])) > DOOR
        grip_3 = part.handle.centre_3
        grip_3[2] = part.handle.top - BELOW_TOP
        if self._yaw is None or self.stage < SkillStage.MOVE:
            # The turn is spread to both sides of where the hand is now: its last joint has an end.
            half_way = part.way * part.axis_3[2] / 2
            self._yaw = nearest_yaw(now, narrowest + half_way, math.pi) - half_way
        if self.stage is SkillStage.MOVE:
            way = part.way + math.copysign(SHUT, part.way) if door else part.way
            turn = float(np.clip(way * part.axis_3[2], -TURN_STEP, TURN_STEP))
            self._yaw = nearest_yaw(now, narrowest, math.pi) + turn
            cosine, sine = math.cos(turn), math.sin(turn)
            out_2 = (grip_3 - part.anchor_3)[:2]
            grip_3[:2] = part.anchor_3[:2] + np.array([[cosine, -sine], [sine, cosine]]) @ out_2
        point_3 = {
            SkillStage.APPROACH: grip_3 + BEFORE * UP,
            SkillStage.LET_GO: hand.point_3,
            SkillStage.BACK: hand.point_3 + BEFORE * UP,
        }.get(self.stage, grip_3)
        lean = -LEAN if door else LEAN
        leaning_4 = np.array([math.cos(lean / 2), 0.0, math.sin(lean / 2), 0.0])
        quat_4 = multiply(leaning_4, downward(self._yaw, POINTING))
        arrived = _distance(point_3, hand) < ARRIVED
        over = {
            SkillStage.APPROACH: arrived and _is_turned(hand, quat_4),
            SkillStage.REACH: arrived,
            SkillStage.HOLD: self._steps >= HOLD,
            SkillStage.MOVE: part.met and abs(part.way) < TURN_STEP,
            SkillStage.LET_GO: self._steps >= LET_GO,
            SkillStage.BACK: self._steps >= BACK,
        }[self.stage]
        closed = self.stage in (SkillStage.HOLD, SkillStage.MOVE)
        return HandCommand(point_3=point_3, quat_4=quat_4, closed=closed), over


class DraggingSkill(StagedSkill):
    """Pushes a flat dish by its rim, from within, along the table; it holds nothing and lets nothing go."""

    patience: ClassVar[dict[SkillStage, int]] = dict.fromkeys(SkillStage, 80)

    def __init__(self) -> None:
        super().__init__()
        self._yaw: float | None = None
        self._table = 0.0

    def _next(self, hand: Hand, part: Placing) -> tuple[HandCommand, bool]:
        if self._yaw is None:
            self._yaw = yaw_of(hand.quat_4, CLOSING)
            # Of a dish that tips the lowest corner goes down, and fingers that followed it would press on its rim.
            self._table = part.thing.bottom
        way_3 = part.target.origin_3 - part.thing.centre_3
        way_3[2] = 0.0
        radius = float(min(part.thing.half_3[:2]))
        inside_3 = part.thing.centre_3 + limited(way_3, 1e-9) / 1e-9 * WITHIN * radius
        inside_3[2] = self._table + FINGERTIPS
        point_3 = {
            SkillStage.APPROACH: inside_3 + ABOVE,
            SkillStage.REACH: inside_3,
            SkillStage.MOVE: inside_3 + limited(way_3, DISH_LEAD),
        }.get(self.stage, hand.point_3 + ABOVE)
        arrived = _distance(point_3, hand) < ARRIVED
        over = {
            SkillStage.APPROACH: arrived,
            SkillStage.REACH: arrived or float(hand.point_3[2]) < self._table + DOWN,
            SkillStage.MOVE: part.met or float(np.linalg.norm((hand.point_3 - part.thing.centre_3)[:2])) > radius,
            SkillStage.BACK: self._steps >= BACK,
        }.get(self.stage, True)
        return HandCommand(point_3=point_3, quat_4=downward(self._yaw, POINTING), closed=True), over


def _distance(point_3: np.ndarray, hand: Hand) -> float:
    return float(np.linalg.norm(point_3 - hand.point_3))


def _is_turned(hand: Hand, quat_4: np.ndarray) -> bool:
    return float(np.linalg.norm(turn_between(hand.quat_4, quat_4))) < TURNED


def is_dragged(part: Placing) -> bool:
    """Whether a thing is a flat dish that goes to a place on the table it stands on."""
    flat = float(part.thing.half_3[2]) < FLAT and float(min(part.thing.half_3[:2])) > WIDEST
    return flat and part.target.bottom < part.thing.top


def facing(now_4: np.ndarray, pointing_3: np.ndarray, closing_3: np.ndarray) -> np.ndarray:
    """Return the quaternion (w, x, y, z) of a hand that points there and closes along that line, whichever way round
    is the smaller turn from `now_4`."""
    candidates = [_quat_of(sign * closing_3, pointing_3) for sign in (1.0, -1.0)]
    return min(candidates, key=lambda quat_4: float(np.linalg.norm(turn_between(now_4, quat_4))))


def _quat_of(y_3: np.ndarray, z_3: np.ndarray) -> np.ndarray:
    """Return the quaternion of the rotation whose second and third columns these are (Bar-Itzhack 2000)."""
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


class LiberoExpert:
    """See `zoo.experts.Expert`; it reads a `Scene`."""

    def __init__(self, task: Task) -> None:
        # A bowl that begins in a drawer.
        self._rim_azimuth = DRAWER_AZIMUTH if "bowl_in_the_top_drawer_" in task.name else RIM_AZIMUTH
        self._part = 0
        self._skill: Skill | None = None

    def action(self, privileged_P: np.ndarray) -> np.ndarray:
        scene = Scene.from_vector(privileged_P)
        command = self._skill.command(scene.hand, scene.parts[self._part]) if self._skill else None
        if command is None:
            self._part = next_part(scene)
            self._skill = self._skill_for(scene, self._part)
            command = self._skill.command(scene.hand, scene.parts[self._part])
            assert command is not None
        way_3 = command.point_3 - scene.hand.point_3
        twist_6 = np.concatenate([way_3, turn_between(scene.hand.quat_4, command.quat_4)]) / ACTION_SCALE
        return np.append(np.clip(twist_6, -1.0, 1.0), CLOSE if command.closed else OPEN).astype(np.float32)

    def _skill_for(self, scene: Scene, index: int) -> Skill:
        part = scene.parts[index]
        if isinstance(part, Moving):
            return TurningSkill() if part.turns else DrawerSkill()
        if is_dragged(part):
            return DraggingSkill()
        others = [other for other in scene.parts if isinstance(other, Placing) and other is not part]
        return PlacingSkill(self._rim_azimuth, own_place(part, others))


def next_part(scene: Scene) -> int:
    """Return the index of the first part that does not hold yet; of the last where all do."""
    return next((index for index, part in enumerate(scene.parts) if not part.met), len(scene.parts) - 1)
