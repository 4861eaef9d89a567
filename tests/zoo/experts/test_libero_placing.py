"""Placing: grasps and waypoints by hand, the stages on a stub of a world."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from vla_gym.adapters.libero.scene import Hand, Placing, Solid
from zoo.experts.libero_placing import (
    CLOSING,
    RIM_AZIMUTH,
    WAYPOINT,
    PlacingSkill,
    PlacingStage,
    Plan,
    from_under,
    handle_grasp,
    has_slipped,
    is_over,
    make_plan,
    orientation,
    own_place,
    plan_grasp,
    turn_to_fit,
)
from zoo.experts.motion import yaw_of

DOWN = np.array([0.0, 1.0, 0.0, 0.0])  # fingers close along the world's -y


def block(x: float, y: float, z: float, half: tuple[float, float, float]) -> Solid:
    return Solid(
        origin_3=np.array([x, y, z]), quat_4=np.array([1.0, 0.0, 0.0, 0.0]), middle_3=np.zeros(3), half_3=np.array(half)
    )


def at(*point: float) -> Hand:
    return Hand(point_3=np.array(point), quat_4=DOWN)


def placing(height: float = 0.03) -> Placing:
    """A 4 x 4 x 6 cm block at x = 10 cm; a basket at y = 20 cm, from the floor to 14 cm."""
    thing = block(0.1, 0.0, height, (0.02, 0.02, 0.03))
    return Placing(met=False, thing=thing, grip=thing, target=block(0.0, 0.2, 0.07, (0.06, 0.06, 0.07)))


START = at(0.0, 0.0, 0.3)


@pytest.fixture
def plan() -> Plan:
    return make_plan(START, placing(), RIM_AZIMUTH)


def test_the_plan(plan: Plan) -> None:
    np.testing.assert_allclose(plan.grasp.point_3, [0.1, 0.0, 0.042])  # 1.8 cm below the top
    assert plan.hold == pytest.approx(0.012)
    assert plan.carry_height == pytest.approx(0.2)  # 6 cm over the basket, 20 over the floor
    assert plan.turn is None


@pytest.mark.parametrize(
    ("stage", "hand", "point"),
    [
        (PlacingStage.APPROACH, (0.1, 0.01, 0.2), [0.1, 0.0, 0.112]),
        (PlacingStage.APPROACH, (0.1, 0.09, 0.2), [0.1, 0.0, 0.202]),  # 6 cm outside the funnel's mouth: 9 cm higher
        (PlacingStage.DESCEND, (0.1, 0.01, 0.2), [0.1, 0.0, 0.042]),
        (PlacingStage.RAISE, (0.1, 0.0, 0.042), [0.1, 0.0, 0.242]),  # by 20 cm
        (PlacingStage.CARRY, (0.1, 0.0, 0.042), [0.0, 0.2, 0.242]),
        # The block would stand in the basket with the hand at 4.2 cm; the basket's top keeps it above 14 cm.
        (PlacingStage.LOWER, (0.1, 0.0, 0.042), [0.0, 0.2, 0.14]),
    ],
)
def test_where_the_hand_goes(stage: PlacingStage, hand: tuple[float, ...], point: list[float], plan: Plan) -> None:
    np.testing.assert_allclose(WAYPOINT[stage](at(*hand), placing(), plan), point)


def test_a_block_left_behind_has_slipped(plan: Plan) -> None:
    lifted = at(0.1, 0.0, 0.1)  # 7 cm over a block that stands on the floor, held 1.2 cm from its centre
    assert has_slipped(PlacingStage.RAISE, lifted, placing(), plan)
    assert not has_slipped(PlacingStage.DESCEND, lifted, placing(), plan)
    assert not has_slipped(PlacingStage.RAISE, at(0.1, 0.0, 0.242), placing(0.23), plan)


@pytest.mark.parametrize(
    ("stage", "steps", "hand", "over"),
    [
        (PlacingStage.DESCEND, 1, at(0.1, 0.0, 0.047), True),
        (PlacingStage.DESCEND, 1, at(0.1, 0.0, 0.049), False),
        (PlacingStage.GRASP, 8, START, False),
        (PlacingStage.GRASP, 9, START, True),
        (PlacingStage.DESCEND, 40, START, True),
    ],
)
def test_stages_end_by_arriving_by_time_or_by_patience(
    stage: PlacingStage, steps: int, hand: Hand, over: bool, plan: Plan
) -> None:
    assert is_over(stage, steps, hand, placing(), plan) is over


def test_a_perfect_world_sees_every_stage_in_order() -> None:
    """The hand goes a third of what is asked; a closed hand that is at the block takes it along."""
    skill, hand, part, seen = PlacingSkill(RIM_AZIMUTH, np.zeros(2)), START, placing(), []
    for _ in range(150):
        command = skill.command(hand, part)
        if command is None:
            break
        if skill.stage not in seen:
            seen.append(skill.stage)
        step_3 = np.clip(command.point_3 - hand.point_3, -0.05, 0.05) / 3
        if command.closed and np.linalg.norm(hand.point_3 - part.thing.centre_3) < 0.02:
            lifted = replace(part.thing, origin_3=part.thing.origin_3 + step_3)
            part = replace(part, thing=lifted, grip=lifted)
        hand = replace(hand, point_3=hand.point_3 + step_3)
    assert seen == list(PlacingStage)
    assert command is None
    np.testing.assert_allclose(part.thing.origin_3[:2], [0.0, 0.2], atol=0.012)


def test_a_thing_under_a_drawer_goes_aside_by_the_shortest_way() -> None:
    # The drawer reaches 12 cm in x and 10 in y, at 50 cm; the block 2 and 2: with 3 cm to spare, 17 and 15.
    drawer = block(0.0, 0.0, 0.5, (0.12, 0.1, 0.05))
    assert from_under(block(-0.12, 0.02, 0.03, (0.02, 0.02, 0.03)), drawer) == pytest.approx([-0.05, 0.0])
    assert from_under(block(-0.02, -0.12, 0.03, (0.02, 0.02, 0.03)), drawer) == pytest.approx([0.0, -0.03])
    assert not from_under(block(-0.18, 0.0, 0.03, (0.02, 0.02, 0.03)), drawer).any()
    assert not from_under(block(0.0, 0.0, 0.6, (0.02, 0.02, 0.03)), drawer).any()  # above it


def test_a_handle_is_taken_across() -> None:
    handle = block(0.3, 0.2, 0.05, (0.05, 0.01, 0.01))
    grasp = handle_grasp(handle, np.array([0.1, 0.2, 0.0]), hand_yaw=1.2)
    np.testing.assert_allclose(grasp.point_3, [0.26, 0.2, 0.06 - 0.018])  # 4 cm nearer to the thing than its middle
    assert grasp.finger_yaw == pytest.approx(math.pi / 2)  # it stands out along x


UPRIGHT = np.array([1.0, 0.0, 0.0, 0.0])


def solid(half: tuple[float, float, float], quat: np.ndarray = UPRIGHT, height: float = 0.0) -> Solid:
    return Solid(origin_3=np.array([0.1, -0.2, height]), quat_4=quat, middle_3=np.zeros(3), half_3=np.array(half))


def test_a_flat_box_is_taken_across_its_narrow_side_just_above_the_floor() -> None:
    box = solid((0.041, 0.021, 0.009), height=0.009)
    grasp = plan_grasp(box, hand_yaw=0.3)
    assert grasp.finger_yaw == pytest.approx(math.pi / 2)  # 8.2 cm along x are too wide
    # Its top is at 1.8 cm; 1.8 cm below that is the floor, so the least height of a grip decides.
    np.testing.assert_allclose(grasp.point_3, [0.1, -0.2, 0.008])


def test_what_is_too_wide_is_taken_by_its_rim() -> None:
    bowl = solid((0.053, 0.053, 0.025), height=0.025)
    grasp = plan_grasp(bowl, hand_yaw=-math.pi / 2, rim_azimuth=3 * math.pi / 4)
    away = 0.05 / math.sqrt(2)  # 5.3 cm less the wall, at 135 degrees
    np.testing.assert_allclose(grasp.point_3, [0.1 - away, -0.2 + away, 0.05 - 0.018])
    assert grasp.finger_yaw == pytest.approx(-math.pi / 4)  # half a turn from 135 degrees


def turned_about_z(angle: float) -> np.ndarray:
    return np.array([math.cos(angle / 2), 0.0, 0.0, math.sin(angle / 2)])


BOOK = (0.06, 0.015, 0.1)
COMPARTMENT = solid((0.03, 0.07, 0.05))  # narrow along x, wide along y


def test_a_book_is_turned_into_a_narrow_compartment() -> None:
    book = solid(BOOK, turned_about_z(0.3))  # its length lies at 0.3 rad from x
    assert turn_to_fit(book, COMPARTMENT) == pytest.approx(math.pi / 2 - 0.3)
    back = solid(BOOK, turned_about_z(-0.3))
    assert turn_to_fit(back, COMPARTMENT) == pytest.approx(-math.pi / 2 + 0.3)


def test_what_fits_anyhow_or_nohow_is_not_turned() -> None:
    assert turn_to_fit(solid(BOOK), solid((0.07, 0.07, 0.05))) is None  # its half diagonal, 6.2 cm, is below 6.3
    assert turn_to_fit(solid((0.06, 0.035, 0.1)), COMPARTMENT) is None  # too thick
    assert turn_to_fit(solid((0.08, 0.015, 0.1)), COMPARTMENT) is None  # too long


def shelved(book: Solid) -> Placing:
    return Placing(met=False, thing=book, grip=book, target=COMPARTMENT)


def test_the_hand_turns_with_the_book_once_it_is_lifted() -> None:
    hand, book = at(0.1, -0.2, 0.3), solid(BOOK, turned_about_z(0.3), height=0.1)
    plan = make_plan(hand, shelved(book), RIM_AZIMUTH)
    before, after = (yaw_of(orientation(stage, plan), CLOSING) for stage in (PlacingStage.RAISE, PlacingStage.CARRY))
    assert math.remainder(after - before, 2 * math.pi) == pytest.approx(math.pi / 2 - 0.3)
    # Its bottom 6 cm over the compartment's top, which is at 5: it goes down only when it is turned.
    high = shelved(replace(book, origin_3=np.array([0.1, -0.2, 0.21])))
    for stage, over in ((PlacingStage.RAISE, False), (PlacingStage.CARRY, True)):
        turned = replace(hand, quat_4=orientation(stage, plan))
        assert is_over(PlacingStage.CARRY, 1, turned, high, plan) is over


def test_a_book_goes_to_a_narrow_compartment_by_its_middle_not_by_its_origin() -> None:
    hand, points = at(0.1, -0.2, 0.3), []
    for middle in ([0.0, 0.0, 0.02], [0.02, 0.0, 0.0]):
        part = shelved(replace(solid(BOOK, turned_about_z(0.3)), middle_3=np.array(middle)))
        points.append(WAYPOINT[PlacingStage.CARRY](hand, part, make_plan(hand, part, RIM_AZIMUTH))[:2])
    away_2 = 0.02 * np.array([math.cos(0.3), math.sin(0.3)])
    np.testing.assert_allclose(points[0] - points[1], away_2, atol=1e-9)


def pot(x: float, place: Solid, half: tuple[float, float, float] = (0.04, 0.07, 0.08)) -> Placing:
    thing = block(x, 0.3, 0.08, half)
    return Placing(met=False, thing=thing, grip=thing, target=place)


def test_things_on_one_flat_place_stand_side_by_side() -> None:
    burner = block(0.0, -0.2, 0.0, (0.075, 0.075, 0.003))
    left, right = pot(-0.05, burner), pot(0.04, burner)
    # 8 cm wide and 2 cm apart: 5 cm to each side, and none crosses the other's way.
    np.testing.assert_allclose(own_place(left, [right]), [-0.05, 0.0], atol=1e-12)
    np.testing.assert_allclose(own_place(right, [left]), [0.05, 0.0], atol=1e-12)
    np.testing.assert_allclose(own_place(left, [right, pot(0.2, burner)]), [-0.1, 0.0], atol=1e-12)


def test_a_place_of_its_own_or_a_deep_one_is_gone_to_by_its_middle() -> None:
    burner, basket = block(0.0, -0.2, 0.0, (0.075, 0.075, 0.003)), block(0.0, -0.2, 0.07, (0.06, 0.06, 0.07))
    assert not own_place(pot(0.0, burner), []).any()
    assert not own_place(pot(0.0, burner), [pot(0.1, basket)]).any()
    assert not own_place(pot(0.0, basket), [pot(0.1, basket)]).any()
