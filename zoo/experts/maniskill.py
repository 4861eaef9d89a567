"""Experts of some of ManiSkill's tabletop tasks and of ManiSkill-Plate25: the hand's next target.

The present state alone decides. They keep no memory, so they go on from wherever noise, or another policy, has brought
the scene.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vla_gym.adapters.maniskill.tasks import HAND_DIM, THING_DIM
from vla_gym.rotations import axes_of, turn_between
from vla_gym.specs import Task
from zoo.experts.motion import Aim, Body, body, downward, funnel, limited, narrowest_yaw, nearest_yaw, yaw_of

FINGERS = 1  # axis of both hands that their fingers open along
AT_THING = 0.012  # metres between hand and grip at which fingers close

# Tabletop tasks: a Panda, in the world's frame ------------------------------------------------------

POINTING = 2  # axis of the hand that points down
REACH, TURN = 0.1, -0.1  # meaning of an action of 1, metres and radians; drives go less than half of it in a step
LONGEST = 0.08  # metres commanded in a step: more, and inverse kinematics fail near the edge of the arm's reach
HALF_CUBE = 0.02
GRIP_TOLERANCE = 0.3  # radians that fingers may be turned against a cube's sides; it gives way by itself
SPHERE_RADIUS, BIN_FLOOR = 0.02, 0.0025
PLACED = (0.01, 0.005)  # metres, level and up, off its place at which a thing is let go
BEHIND, PAST = 0.05, 0.03  # metres from a cube's centre at which a push begins, and at which the hand then aims
ROLL_BEHIND, ROLL_PAST = 0.07, 0.15  # the same of a ball that is rolled
BASE_YAWS = {"RollBall": -np.pi / 2}
"""Task -> direction, radians from the world's x, that its robot faces; its actions' frame. 0 for the others."""


@dataclass(frozen=True, kw_only=True)
class TableView:
    """A privileged observation, see `ManiSkillSimulator.privileged`; in the world's frame."""

    hand: Body
    opening: float  # metres between the fingers
    holding: bool  # whether the first thing is between them
    things: tuple[Body, ...]


def table_view(privileged_P: np.ndarray) -> TableView:
    """Split the vector into its parts."""
    return TableView(
        hand=body(privileged_P[:THING_DIM]),
        opening=float(privileged_P[7]),
        holding=bool(privileged_P[8]),
        things=tuple(body(thing) for thing in privileged_P[HAND_DIM:].reshape(-1, THING_DIM)),
    )


def pick_cube(view: TableView) -> Aim:
    """Carry the cube to the goal; there the arm comes to rest."""
    if not view.holding:
        return _grasp(view, cube=True)
    cube, goal = view.things
    return _go(view.hand, view.hand.position_3 + goal.position_3 - cube.position_3)


def _grasp(view: TableView, *, cube: bool) -> Aim:
    """Go to the first thing from above; fingers along its sides, if it is a cube, and closed when there."""
    hand, thing = view.hand, view.things[0]
    yaw = side = yaw_of(hand.quat_4, FINGERS)
    if cube:
        side = nearest_yaw(yaw, yaw_of(thing.quat_4, 0), np.pi / 2)
    turned = abs(side - yaw) <= GRIP_TOLERANCE
    there = float(np.linalg.norm(thing.position_3 - hand.position_3)) <= AT_THING
    return Aim(
        position_3=_from_above(hand.position_3, thing.position_3),
        finger_yaw=yaw if turned else side,
        opened=not (there and turned),
    )


def _put(view: TableView, height: float, *, cube: bool) -> Aim:
    """Carry the first thing to `height` above the second's centre, from above; let go there and stay."""
    thing_3, base_3 = (thing.position_3 for thing in view.things)
    place_3 = base_3 + np.array([0.0, 0.0, height])
    level, up = PLACED
    if np.hypot(*(place_3 - thing_3)[:2]) < level and abs(place_3 - thing_3)[2] < up:
        return _go(view.hand, view.hand.position_3, opened=True)
    if not view.holding:
        return _grasp(view, cube=cube)
    way_3 = funnel(thing_3, place_3, mouth=0.005, slope=4.0, height=0.06) - thing_3
    return _go(view.hand, view.hand.position_3 + way_3)


def _shove(view: TableView, away: float) -> Aim:
    """Shove the cube with closed fingers along x, away from the robot with 1, towards it with -1."""
    hand_3, cube_3 = view.hand.position_3, view.things[0].position_3
    behind_3 = cube_3 - np.array([away * BEHIND, 0.0, 0.0])
    beyond = away * (cube_3 - hand_3)[0] > 0.03
    if beyond and abs(hand_3 - behind_3)[1] < 0.01 and hand_3[2] < 0.03:
        return _go(view.hand, cube_3 + np.array([away * PAST, 0.0, 0.0]))
    return _go(view.hand, _from_above(hand_3, behind_3))


def _roll(view: TableView) -> Aim:
    """Shove the ball along the line to its goal, fast enough to roll there, with closed fingers across the line."""
    hand_3, (ball_3, goal_3) = view.hand.position_3, (thing.position_3 for thing in view.things)
    along_3 = (goal_3 - ball_3) * np.array([1.0, 1.0, 0.0])
    along_3 /= np.linalg.norm(along_3)
    across = float(np.arctan2(along_3[1], along_3[0])) + np.pi / 2
    finger_yaw = nearest_yaw(yaw_of(view.hand.quat_4, FINGERS), across, np.pi)
    before, off = (hand_3 - ball_3) @ along_3, np.cross(along_3, hand_3 - ball_3)[2]
    if before < -0.02 and abs(off) < 0.015 and hand_3[2] < ball_3[2] + 0.025:
        return Aim(position_3=ball_3 + along_3 * ROLL_PAST, finger_yaw=finger_yaw, opened=False)
    behind_3 = ball_3 - along_3 * ROLL_BEHIND
    above_3 = funnel(hand_3, behind_3, mouth=0.02, slope=2.0, height=0.1)
    return Aim(position_3=above_3, finger_yaw=finger_yaw, opened=False)


def _from_above(hand_3: np.ndarray, goal_3: np.ndarray) -> np.ndarray:
    return funnel(hand_3, goal_3, mouth=0.01, slope=2.0, height=0.08)


def _go(hand: Body, position_3: np.ndarray, *, opened: bool = False) -> Aim:
    """Go to a point; the hand keeps the yaw of the pose `hand`."""
    return Aim(position_3=position_3, finger_yaw=yaw_of(hand.quat_4, FINGERS), opened=opened)


AIMS: dict[str, Callable[[TableView], Aim]] = {
    "PickCube": pick_cube,
    "PushCube": lambda view: _shove(view, 1.0),
    "PullCube": lambda view: _shove(view, -1.0),
    "StackCube": lambda view: _put(view, 2 * HALF_CUBE, cube=True),
    "PlaceSphere": lambda view: _put(view, BIN_FLOOR + SPHERE_RADIUS, cube=False),
    "RollBall": _roll,
}
"""Task -> its controller."""


def arm_action(view: TableView, aim: Aim, base_yaw: float = 0.0) -> np.ndarray:
    """Return float32 `[7]` in [-1, 1] towards the aim, the hand kept pointing down; `base_yaw` (radians): where
    the robot faces."""
    way_3 = limited(aim.position_3 - view.hand.position_3, LONGEST) / REACH
    turn_3 = limited(turn_between(view.hand.quat_4, downward(aim.finger_yaw, POINTING)) / TURN, 1.0)
    cosine, sine = np.cos(base_yaw), np.sin(base_yaw)
    into_base_33 = np.array([[cosine, sine, 0.0], [-sine, cosine, 0.0], [0.0, 0.0, 1.0]])
    fingers = 1.0 if aim.opened else -1.0
    return np.array([*(into_base_33 @ way_3), *(into_base_33 @ turn_3), fingers], dtype=np.float32)


class ManiSkillExpert:
    """See `zoo.experts.Expert`; for the tasks of `AIMS`."""

    def __init__(self, task: Task) -> None:
        self._aim, self._base_yaw = AIMS[task.name], BASE_YAWS.get(task.name, 0.0)

    def action(self, privileged_P: np.ndarray) -> np.ndarray:
        view = table_view(privileged_P)
        return arm_action(view, self._aim(view), self._base_yaw)


# Plate25: a WidowX, in the frame of its base --------------------------------------------------------

PLATE_POINTING = 0  # axis of the hand that points down
PLATE_LONGEST, PLATE_WIDEST = 0.04, 0.25  # metres and radians commanded in a step of 1/5 s
TIPS_BELOW = 0.018  # metres that the fingertips are below the point between the fingers, with room to spare
GRIP_DEPTH = 0.018  # metres below an object's top to which the fingers reach before its top meets the palm
TURN_TOLERANCE = 0.15  # radians that the fingers may be off before they go down to the object
CLEAR = 0.06  # metres above the object at which the hand comes and turns
DROP = 0.004  # metres above the plate at which the object is let go
ON_PLATE = (0.02, 0.02)  # metres, level and up, off its place within which the object is let go and may stay
AWAY = 0.1  # metres above the object at which the hand waits once it is done


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
    target: Body  # commanded pose of the hand, to which actions are relative
    gripped: bool
    thing: Box
    plate: Box
    metres: float  # meaning of an action of 1
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


def plate_aim(view: PlateView) -> Aim:
    """Fetch the object, carry it over the plate, let it go, move up."""
    thing_3, plate_3 = view.thing.middle.position_3, view.plate.middle.position_3
    lift = view.plate.half_height + view.thing.half_height + DROP
    place_3 = plate_3 + np.array([0.0, 0.0, lift])
    level, up = ON_PLATE
    if np.hypot(*(thing_3 - place_3)[:2]) < level and abs(thing_3 - place_3)[2] < up:
        return _go(view.target, thing_3 + np.array([0.0, 0.0, AWAY]), opened=True)
    if not view.gripped:
        return _grip(view)
    way_3 = funnel(thing_3, place_3, mouth=0.01, slope=3.0, height=0.06) - thing_3
    return _go(view.target, view.hand.position_3 + way_3)


def _grip(view: PlateView) -> Aim:
    hand_3, thing_3 = view.hand.position_3, view.thing.middle.position_3
    yaw = yaw_of(view.hand.quat_4, FINGERS)
    side = nearest_yaw(yaw, narrowest_yaw(view.thing.middle.quat_4, view.thing.size_3), np.pi)
    half = view.thing.half_height
    grip_3 = thing_3 + np.array([0.0, 0.0, max(0.0, TIPS_BELOW - half, half - GRIP_DEPTH)])
    over_3 = grip_3 + np.array([0.0, 0.0, half + CLEAR])
    turned = abs(side - yaw) <= TURN_TOLERANCE
    down_3 = funnel(hand_3, grip_3, mouth=0.003, slope=5.0, height=half + CLEAR)
    there = float(np.linalg.norm(grip_3 - hand_3)) <= AT_THING
    return Aim(position_3=down_3 if turned else over_3, finger_yaw=side, opened=not there)


def plate_action(view: PlateView, aim: Aim) -> np.ndarray:
    """Return float32 `[7]` in [-1, 1] towards the aim, the hand kept pointing down."""
    way_3 = limited(aim.position_3 - view.target.position_3, PLATE_LONGEST) / view.metres
    turn_3 = turn_between(view.target.quat_4, downward(aim.finger_yaw, PLATE_POINTING))
    turn_3 = limited(turn_3, PLATE_WIDEST) / view.radians
    return np.array([*way_3, *turn_3, 1.0 if aim.opened else -1.0], dtype=np.float32)


class Plate25Expert:
    """See `zoo.experts.Expert`; the task is in the privileged state."""

    def __init__(self, task: Task) -> None:
        del task

    def action(self, privileged_P: np.ndarray) -> np.ndarray:
        view = plate_view(privileged_P)
        return plate_action(view, plate_aim(view))
