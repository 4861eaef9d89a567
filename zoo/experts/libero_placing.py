"""The skill of placing, of LIBERO's expert: a state machine that takes a thing from above and puts it in its place.

Grasps are pure geometry. World frame, metres and radians.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from vla_gym.adapters.libero.scene import Hand, Placing, Solid
from vla_gym.rotations import axes_of, turn_between
from zoo.experts.motion import downward, funnel, nearest_yaw, yaw_of

WIDEST = 0.035  # half the width that fits between the open fingers with some play; they open by 0.038 each
BELOW_TOP = 0.018  # from the top of a thing down to its grip; the palm is 0.026 from the grip site
ABOVE_BOTTOM = 0.008  # least height of a grip over the thing's bottom: finger pads reach 0.004 below the grip site
INWARD = 0.04  # from a handle's middle towards the thing, where it is held and turns the least in the hand
WALL = 0.003  # from the outside of a rim to the middle of its wall
RIM_AZIMUTH = math.radians(150.0)  # side of a rim that is taken, from world x: to the robot, away from the cabinet
RIM_SIDES = tuple(math.radians(angle) for angle in (0.0, -60.0, 60.0, -120.0, 120.0))  # from it, one after the other
POINTING, CLOSING = 2, 1  # axes of the hand: out of it, and the one that the fingers close along
ABOVE = np.array([0.0, 0.0, 0.07])  # from a grasp to the point that the hand comes straight down from
FUNNEL = {"mouth": 0.03, "slope": 1.5, "height": 0.12}  # way to that point, over the neighbours
SLOPE = 1.0  # of a thing's way down from high up
CLEARANCE = 0.06  # between a carried thing and the top of the place it goes to
FLAT, GAP = 0.01, 0.02  # half height of a place on which things stand side by side, and the room between them
SNUG = 0.9  # share of a target's narrow half width that a thing's half diagonal may have without being turned
LIFT = 0.2  # least height by which a thing is lifted: a drawer's walls and the things on its way are lower
MARGIN, ASIDE, SKIM = 0.03, 0.02, 0.015  # round a drawer that a thing passes; within which it is aside; lift for that
ARRIVED, TURNED = 0.006, 0.08  # within which the hand has arrived
CENTRED, LEVEL = 0.012, 0.02  # from its way, sideways and in height, at which a carried thing may go on
SLIPPED = 0.04  # change of the distance between hand and thing that means it is no longer held


@dataclass(frozen=True, kw_only=True)
class HandCommand:
    """Where the hand should be."""

    point_3: np.ndarray  # of the grip site
    quat_4: np.ndarray  # (w, x, y, z)
    closed: bool  # whether the fingers close


class PlacingStage(IntEnum):
    """Stages in their order; when the thing slips away the first begins again."""

    APPROACH = 0
    DESCEND = 1
    GRASP = 2
    RAISE = 3
    CARRY = 4
    LOWER = 5
    RELEASE = 6
    RETREAT = 7


CARRYING = (PlacingStage.RAISE, PlacingStage.CARRY, PlacingStage.LOWER)
CLOSED = (PlacingStage.GRASP, *CARRYING)
DURATION = {
    PlacingStage.GRASP: 9,
    PlacingStage.RELEASE: 9,
    PlacingStage.RETREAT: 6,
}  # steps; fingers take 8 from one end to the other
PATIENCE = 40  # steps after which any other stage is left although something keeps the hand from arriving


@dataclass(frozen=True, kw_only=True)
class Grasp:
    """A pose of the hand, pointing down, in which closing the fingers holds a thing."""

    point_3: np.ndarray  # of the grip site
    finger_yaw: float  # direction of the line through both fingertips, seen from above, modulo half a turn


def plan_grasp(thing: Solid, hand_yaw: float, rim_azimuth: float = RIM_AZIMUTH) -> Grasp:
    """Return a grasp across a thing that fits between the fingers, with the least turn of the hand; else by its rim.

    Args:
        thing: the object to hold.
        hand_yaw: direction of the line through the fingertips now.
        rim_azimuth: side on which a rim is taken, from its middle, seen from above.
    """
    point_3 = thing.centre_3
    point_3[2] = max(thing.top - BELOW_TOP, thing.bottom + ABOVE_BOTTOM)
    yaws = [nearest_yaw(hand_yaw, yaw, math.pi) for half, yaw in level_axes(thing) if half <= WIDEST]
    if yaws:
        return Grasp(point_3=point_3, finger_yaw=min(yaws, key=lambda yaw: abs(yaw - hand_yaw)))
    radius = float(np.mean(thing.half_3[:2])) - WALL
    point_3[:2] += radius * np.array([math.cos(rim_azimuth), math.sin(rim_azimuth)])
    return Grasp(point_3=point_3, finger_yaw=nearest_yaw(hand_yaw, rim_azimuth, math.pi))


def handle_grasp(grip: Solid, origin_3: np.ndarray, hand_yaw: float) -> Grasp:
    """Return a grasp of a handle that stands out from the thing's origin: across it, not along."""
    point_3 = grip.centre_3
    out_x, out_y = (point_3 - origin_3)[:2]
    point_3 -= INWARD * np.array([out_x, out_y, 0.0]) / math.hypot(out_x, out_y)
    point_3[2] = grip.top - BELOW_TOP
    across = math.atan2(out_x, -out_y)
    return Grasp(point_3=point_3, finger_yaw=nearest_yaw(hand_yaw, across, math.pi))


def level_axes(thing: Solid) -> list[tuple[float, float]]:
    """Return (half extent in metres, direction seen from above) of a thing's two level axes, the shorter first."""
    axes_33 = axes_of(thing.quat_4)
    upright = int(np.argmax(np.abs(axes_33[2])))
    return sorted(
        (float(thing.half_3[axis]), math.atan2(axes_33[1, axis], axes_33[0, axis]))
        for axis in range(3)
        if axis != upright
    )


def turn_to_fit(thing: Solid, target: Solid) -> float | None:
    """Return the turn, seen from above, that brings a thing between the sides of a target that it fits in narrowly;
    None where no turn is needed, or none helps."""
    (short, _), (long, yaw) = level_axes(thing)
    (narrow, _), (wide, target_yaw) = level_axes(target)
    if math.hypot(short, long) <= SNUG * narrow or short > narrow or long > wide:
        return None
    return nearest_yaw(yaw, target_yaw, math.pi) - yaw


def own_place(part: Placing, others: Sequence[Placing]) -> np.ndarray:
    """Return where a thing goes from the middle of its target, in the plane, `[2]`, metres.

    Things that stand on one flat place stand side by side, along their narrower side and in the order in which they
    lie along it now; else the middle is the place.
    """
    shares = [one for one in others if np.array_equal(one.target.origin_3, part.target.origin_3)]
    if part.target.half_3[2] > FLAT or not shares:
        return np.zeros(2)
    half, yaw = level_axes(part.thing)[0]
    along_2 = np.array([math.cos(yaw), math.sin(yaw)])
    before = sum(float((one.thing.origin_3 - part.thing.origin_3)[:2] @ along_2) < 0 for one in shares)
    place_2: np.ndarray = along_2 * (2 * half + GAP) * (before - len(shares) / 2)
    return place_2


def from_under(thing: Solid, target: Solid) -> np.ndarray:
    """Return the shortest way along x or y that brings a thing out from under a target above it, `[2]`."""
    way_2 = np.zeros(2)
    if thing.top > target.bottom:
        return way_2
    reach_2 = target.extents_3[:2] + thing.extents_3[:2] + MARGIN
    apart_2 = (thing.centre_3 - target.centre_3)[:2]
    lacking_2 = reach_2 - np.abs(apart_2)
    if lacking_2.min() > 0:
        axis = int(np.argmin(lacking_2))
        way_2[axis] = math.copysign(float(lacking_2[axis]), float(apart_2[axis]))
    return way_2


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Numbers that stay while the stages pass."""

    grasp: Grasp
    hold: float  # distance between the held thing's centre and the hand
    carry_height: float  # of the bottom of the carried thing
    aside_2: np.ndarray  # way in the plane that the thing goes before it rises, out from under the target
    turn: float | None  # by which the hand turns with the thing on the way, seen from above, so that it fits


def make_plan(hand: Hand, part: Placing, rim_azimuth: float) -> Plan:
    """Return the plan for the present scene."""
    hand_yaw = yaw_of(hand.quat_4, CLOSING)
    if np.array_equal(part.grip.centre_3, part.thing.centre_3):
        grasp = plan_grasp(part.thing, hand_yaw, rim_azimuth)
    else:
        grasp = handle_grasp(part.grip, part.thing.origin_3, hand_yaw)
    return Plan(
        grasp=grasp,
        hold=float(np.linalg.norm(part.thing.centre_3 - grasp.point_3)),
        carry_height=max(part.target.top + CLEARANCE, part.thing.bottom + LIFT),
        aside_2=from_under(part.thing, part.target),
        turn=turn_to_fit(part.thing, part.target),
    )


def _raise(hand: Hand, part: Placing, plan: Plan) -> np.ndarray:
    """Aside as far as need be, then straight up until the thing is high enough."""
    point_2 = plan.grasp.point_3[:2] + plan.aside_2
    if np.linalg.norm(point_2 - hand.point_3[:2]) > ASIDE and plan.aside_2.any():
        return np.array([*point_2, plan.grasp.point_3[2] + SKIM])
    return np.array([*point_2, hand.point_3[2] + plan.carry_height - part.thing.bottom])


def _carry(hand: Hand, part: Placing, plan: Plan) -> np.ndarray:
    """Sideways, and down when near, until the thing's origin is over the target's."""
    middle_3 = part.thing.origin_3 if plan.turn is None else part.thing.centre_3
    bottom_3 = np.array([*middle_3[:2], part.thing.bottom])
    over_3 = np.array([*part.target.origin_3[:2], part.target.top + CLEARANCE])
    height = plan.carry_height - over_3[2]
    return hand.point_3 + funnel(bottom_3, over_3, mouth=CENTRED, slope=SLOPE, height=height) - bottom_3


def _lower(hand: Hand, part: Placing, plan: Plan) -> np.ndarray:
    """Down, until the thing stands on the target's bottom, or the hand would touch its top."""
    above_3 = _carry(hand, part, plan)
    above_3[2] = max(hand.point_3[2] - (part.thing.bottom - part.target.bottom), part.target.top)
    return above_3


WAYPOINT: dict[PlacingStage, Callable[[Hand, Placing, Plan], np.ndarray]] = {
    PlacingStage.APPROACH: lambda hand, part, plan: funnel(hand.point_3, plan.grasp.point_3 + ABOVE, **FUNNEL),
    PlacingStage.DESCEND: lambda hand, part, plan: plan.grasp.point_3,
    PlacingStage.GRASP: lambda hand, part, plan: plan.grasp.point_3,
    PlacingStage.RAISE: _raise,
    PlacingStage.CARRY: _carry,
    PlacingStage.LOWER: _lower,
    PlacingStage.RELEASE: lambda hand, part, plan: hand.point_3,
    PlacingStage.RETREAT: lambda hand, part, plan: hand.point_3 + ABOVE,
}
"""PlacingStage -> target of the grip site, `[3]`, metres."""


def orientation(stage: PlacingStage, plan: Plan) -> np.ndarray:
    """Return the hand's quaternion (w, x, y, z) in a stage."""
    turn = plan.turn if stage >= PlacingStage.CARRY else None
    return downward(plan.grasp.finger_yaw + (turn or 0.0), POINTING)


def has_slipped(stage: PlacingStage, hand: Hand, part: Placing, plan: Plan) -> bool:
    """Whether the thing should be in the hand but is not."""
    distance = float(np.linalg.norm(part.thing.centre_3 - hand.point_3))
    return stage in CARRYING and abs(distance - plan.hold) > SLIPPED


def is_over(stage: PlacingStage, steps: int, hand: Hand, part: Placing, plan: Plan) -> bool:
    """Whether the stage is done, or out of patience, after so many steps."""
    if stage in DURATION:
        return steps >= DURATION[stage]
    if steps >= PATIENCE:
        return True
    x, y, height = WAYPOINT[stage](hand, part, plan) - hand.point_3
    turned = float(np.linalg.norm(turn_between(hand.quat_4, orientation(stage, plan)))) < TURNED
    if stage in (PlacingStage.RAISE, PlacingStage.CARRY):
        turned = turned or stage is PlacingStage.RAISE or plan.turn is None
        return turned and bool(np.hypot(x, y) < CENTRED and abs(height) < LEVEL)
    turned = turned or stage is PlacingStage.LOWER
    return turned and float(np.linalg.norm([x, y, height])) < ARRIVED


class PlacingSkill:
    """Goes through `PlacingStage` once; see `zoo.experts.libero.Skill`. A thing that slips away is taken again."""

    def __init__(self, rim_azimuth: float, place_2: np.ndarray) -> None:
        self._rim_azimuth = rim_azimuth
        self._place_3 = np.append(place_2, 0.0)
        self._plan: Plan | None = None
        self._attempts = 0
        self.stage, self._steps = PlacingStage.APPROACH, 0

    def command(self, hand: Hand, part: Placing) -> HandCommand | None:
        part = replace(part, target=replace(part.target, origin_3=part.target.origin_3 + self._place_3))
        plan = self._plan
        if plan is not None and is_over(self.stage, self._steps, hand, part, plan):
            if self.stage is PlacingStage.RETREAT:
                return None
            self.stage, self._steps = PlacingStage(self.stage + 1), 0
        if plan is None or has_slipped(self.stage, hand, part, plan):
            # What is in the way on one side of a rim, a mug's ear for instance, is not on another.
            other_side = RIM_SIDES[self._attempts % len(RIM_SIDES)]
            self._plan = plan = make_plan(hand, part, self._rim_azimuth + other_side)
            self._attempts += 1
            self.stage, self._steps = PlacingStage.APPROACH, 0
        self._steps += 1
        return HandCommand(
            point_3=WAYPOINT[self.stage](hand, part, plan),
            quat_4=orientation(self.stage, plan),
            closed=self.stage in CLOSED,
        )
