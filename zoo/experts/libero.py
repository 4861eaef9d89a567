"""Expert for LIBERO's tasks of one placing: a state machine that takes a thing from above and puts it in its place.

Grasps are pure geometry. World frame, metres and radians.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from vla_gym.adapters.libero.scene import Scene, Solid
from vla_gym.adapters.libero.tasks import ACTION_SCALE
from vla_gym.rotations import axes_of, turn_between
from vla_gym.specs import Task
from zoo.experts.motion import downward, funnel, nearest_yaw, yaw_of

WIDEST = 0.035
"""Half the width that fits between the open fingers with some play; they open by 0.038 each."""
BELOW_TOP = 0.018
"""Distance of a grip below the top of a thing: the palm is 0.026 from the grip site."""
ABOVE_BOTTOM = 0.008
"""Least height of a grip over the thing's bottom: the finger pads reach 0.004 below the grip site."""
WALL = 0.003
"""From the outside of a rim to the middle of its wall."""
RIM_AZIMUTH = math.radians(150.0)
"""Side on which a rim is taken, from the world's x axis: towards the robot, and away from the cabinet on its right."""
POINTING, CLOSING = 2, 1
"""Axes of the hand: out of it, and the one that the fingers close along."""
ABOVE = np.array([0.0, 0.0, 0.07])
"""From a grasp to the point that the hand comes straight down from, metres."""
FUNNEL = {"mouth": 0.03, "slope": 1.5, "height": 0.12}
"""Approach of that point, over the neighbours; see `funnel`."""
SLOPE = 1.0
"""Steepness of a thing's way down from high up."""
CLEARANCE = 0.06
"""Metres between a carried thing and the top of the place it goes to."""
LIFT = 0.08
"""Least height by which a thing is lifted, metres: the drawer's walls are lower."""
ARRIVED, TURNED = 0.006, 0.08
"""Metres and radians within which the hand has arrived."""
CENTRED, LEVEL = 0.012, 0.02
"""Metres from its way, sideways and in height, at which a carried thing may go on."""
SLIPPED = 0.04
"""Change of the distance between hand and thing, metres, that means it is no longer held."""
DRAWER_AZIMUTH = math.radians(117.0)
"""Side on which the rim of a bowl in the drawer is taken: towards a corner, where the outer finger has room."""
OPEN, CLOSE = -1.0, 1.0


class Stage(IntEnum):
    """Stages in their order; after the last, or when the thing slips away, the first begins again."""

    APPROACH = 0
    DESCEND = 1
    GRASP = 2
    RAISE = 3
    CARRY = 4
    LOWER = 5
    RELEASE = 6
    RETREAT = 7


CARRYING = (Stage.RAISE, Stage.CARRY, Stage.LOWER)
CLOSED = (Stage.GRASP, *CARRYING)
DURATION = {Stage.GRASP: 9, Stage.RELEASE: 9, Stage.RETREAT: 6}
"""Steps of the stages that go by time: fingers take 8 from one end to the other (25 substeps of 0.01 each)."""
PATIENCE = 40
"""Steps after which any other stage is left although something keeps the hand from arriving."""


@dataclass(frozen=True, kw_only=True)
class Grasp:
    """A pose of the hand, pointing down, in which closing the fingers holds a thing."""

    point_3: np.ndarray
    """Grip site."""
    finger_yaw: float
    """Direction of the line through both fingertips, seen from above; a half turn makes no difference."""


def plan_grasp(thing: Solid, hand_yaw: float, rim_azimuth: float = RIM_AZIMUTH) -> Grasp:
    """Return a grasp across a thing that fits between the fingers, with the least turn of the hand; else by its rim.

    Args:
        thing: the object to hold.
        hand_yaw: direction of the line through the fingertips now.
        rim_azimuth: side on which a rim is taken, from its middle, seen from above.
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
    """Return the level axes of a thing that the fingers fit around, as directions seen from above."""
    axes_33 = axes_of(thing.quat_4)
    upright = int(np.argmax(np.abs(axes_33[2])))
    return [
        math.atan2(axes_33[1, axis], axes_33[0, axis])
        for axis in range(3)
        if axis != upright and thing.half_3[axis] <= WIDEST
    ]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Numbers that stay while the stages pass."""

    grasp: Grasp
    hold: float
    """Distance between the held thing's centre and the hand, metres."""
    carry_height: float
    """Of the bottom of the carried thing."""


def make_plan(scene: Scene, rim_azimuth: float) -> Plan:
    """Return the plan for the present scene."""
    grasp = plan_grasp(scene.thing, yaw_of(scene.hand_quat_4, CLOSING), rim_azimuth)
    return Plan(
        grasp=grasp,
        hold=float(np.linalg.norm(scene.thing.centre_3 - grasp.point_3)),
        carry_height=max(scene.target.top + CLEARANCE, scene.thing.bottom + LIFT),
    )


def raising(scene: Scene, plan: Plan) -> np.ndarray:
    """Straight up, until the thing is high enough."""
    rise = plan.carry_height - scene.thing.bottom
    return np.array([*plan.grasp.point_3[:2], scene.hand_3[2] + rise])


def carrying(scene: Scene, plan: Plan) -> np.ndarray:
    """Sideways, and down when near, until the thing's origin is over the target's."""
    bottom_3 = np.array([*scene.thing.origin_3[:2], scene.thing.bottom])
    over_3 = np.array([*scene.target.origin_3[:2], scene.target.top + CLEARANCE])
    height = plan.carry_height - over_3[2]
    return scene.hand_3 + funnel(bottom_3, over_3, mouth=CENTRED, slope=SLOPE, height=height) - bottom_3


def lowering(scene: Scene, plan: Plan) -> np.ndarray:
    """Down, until the thing stands on the target's bottom, or the hand would touch its top."""
    above_3 = carrying(scene, plan)
    above_3[2] = max(scene.hand_3[2] - (scene.thing.bottom - scene.target.bottom), scene.target.top)
    return above_3


WAYPOINT: dict[Stage, Callable[[Scene, Plan], np.ndarray]] = {
    Stage.APPROACH: lambda scene, plan: funnel(scene.hand_3, plan.grasp.point_3 + ABOVE, **FUNNEL),
    Stage.DESCEND: lambda scene, plan: plan.grasp.point_3,
    Stage.GRASP: lambda scene, plan: plan.grasp.point_3,
    Stage.RAISE: raising,
    Stage.CARRY: carrying,
    Stage.LOWER: lowering,
    Stage.RELEASE: lambda scene, plan: scene.hand_3,
    Stage.RETREAT: lambda scene, plan: scene.hand_3 + ABOVE,
}
"""Stage -> target of the grip site, `[3]`, metres."""


def turn_to(scene: Scene, plan: Plan) -> np.ndarray:
    """Return the rotation vector `[3]` from the hand's orientation to the grasp's."""
    return turn_between(scene.hand_quat_4, downward(plan.grasp.finger_yaw, POINTING))


def has_slipped(stage: Stage, scene: Scene, plan: Plan) -> bool:
    """Whether the thing should be in the hand but is not."""
    distance = float(np.linalg.norm(scene.thing.centre_3 - scene.hand_3))
    return stage in CARRYING and abs(distance - plan.hold) > SLIPPED


def is_over(stage: Stage, steps: int, scene: Scene, plan: Plan) -> bool:
    """Whether the stage is done, or out of patience, after so many steps."""
    if stage in DURATION:
        return steps >= DURATION[stage]
    if steps >= PATIENCE:
        return True
    x, y, height = WAYPOINT[stage](scene, plan) - scene.hand_3
    if stage in (Stage.RAISE, Stage.CARRY):
        return bool(np.hypot(x, y) < CENTRED and abs(height) < LEVEL)
    turned = stage is Stage.LOWER or float(np.linalg.norm(turn_to(scene, plan))) < TURNED
    return turned and float(np.linalg.norm([x, y, height])) < ARRIVED


class LiberoExpert:
    """Goes through `Stage`; see `zoo.experts.base.Expert`. It reads a `Scene`."""

    def __init__(self, task: Task) -> None:
        self._rim_azimuth = DRAWER_AZIMUTH if "_drawer_" in task.name else RIM_AZIMUTH
        self._plan: Plan | None = None
        self.stage, self._steps = Stage.APPROACH, 0

    def action(self, privileged_P: np.ndarray) -> np.ndarray:
        """Return the whole way to the stage's waypoint, of which the arm goes about a third: float32 `[7]`."""
        scene = Scene.from_vector(privileged_P)
        plan = self._advance(scene)
        way_3 = WAYPOINT[self.stage](scene, plan) - scene.hand_3
        twist_6 = np.concatenate([way_3, turn_to(scene, plan)]) / ACTION_SCALE
        self._steps += 1
        fingers = CLOSE if self.stage in CLOSED else OPEN
        return np.append(np.clip(twist_6, -1.0, 1.0), fingers).astype(np.float32)

    def _advance(self, scene: Scene) -> Plan:
        """Enter the next stage when the present one is over."""
        plan = self._plan
        if plan is not None and is_over(self.stage, self._steps, scene, plan):
            self.stage, self._steps = Stage((self.stage + 1) % len(Stage)), 0
            if self.stage is Stage.APPROACH:
                plan = None
        if plan is None or has_slipped(self.stage, scene, plan):
            plan = make_plan(scene, self._rim_azimuth)
            self.stage, self._steps = Stage.APPROACH, 0
        self._plan = plan
        return plan
