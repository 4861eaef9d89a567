"""Experts of ManiSkill and Plate25: where the hand goes next, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from vla_gym import find_benchmark
from vla_gym.adapters.maniskill.tasks import TASKS
from vla_gym.adapters.plate25.tasks import PRIVILEGED_DIM
from zoo.experts.maniskill import AIMS, arm_action, pick_cube, plate_action, plate_aim, plate_view, table_view
from zoo.experts.motion import Aim, narrowest_yaw

DOWN = (0.0, 1.0, 0.0, 0.0)
"""Half a turn about x: the hand points down, its fingers open along y."""
FLAT = (1.0, 0.0, 0.0, 0.0)
CUBE = (0.1, 0.0, 0.02, *FLAT)
GOAL = (-0.1, 0.2, 0.32, *FLAT)


def privileged(hand: tuple[float, float, float], *things: tuple[float, ...], holding: bool = False) -> np.ndarray:
    return np.array([*hand, *DOWN, 0.08, holding, *np.concatenate(things)])


def test_the_vector_has_the_length_the_benchmark_declares() -> None:
    for name in AIMS:
        vector = privileged((0, 0, 0), *[CUBE] * len(TASKS[name].things))
        assert find_benchmark(f"ManiSkill/{name}").privileged_dim == len(vector)
    view = table_view(privileged((0.1, 0.2, 0.3), CUBE, GOAL, holding=True))
    assert (view.opening, view.holding) == (0.08, True)
    np.testing.assert_array_equal(view.hand.quat_4, DOWN)
    np.testing.assert_array_equal(view.things[1].position_3, GOAL[:3])


def test_a_cube_is_fetched_from_above_and_grasped_where_it_lies() -> None:
    far = pick_cube(table_view(privileged((-0.2, 0.0, 0.2), CUBE, GOAL)))
    np.testing.assert_allclose(far.position_3, [0.1, 0.0, 0.1])
    assert far.opened
    there = pick_cube(table_view(privileged((0.1, 0.0, 0.025), CUBE, GOAL)))
    np.testing.assert_allclose(there.position_3, CUBE[:3])
    assert not there.opened


def test_fingers_turn_to_the_nearest_sides_before_they_close() -> None:
    turned = (0.1, 0.0, 0.02, np.cos(0.25), 0.0, 0.0, np.sin(0.25))  # half a radian
    aim = pick_cube(table_view(privileged((0.1, 0.0, 0.02), turned, GOAL)))
    assert aim.finger_yaw == pytest.approx(-np.pi / 2 + 0.5)
    assert aim.opened


def test_a_cube_in_hand_is_moved_by_what_it_lacks_to_the_goal() -> None:
    aim = pick_cube(table_view(privileged((0.1, 0.0, 0.03), CUBE, GOAL, holding=True)))
    np.testing.assert_allclose(aim.position_3, [-0.1, 0.2, 0.33])
    assert not aim.opened


def test_a_cube_is_carried_over_the_other_and_let_go_on_it() -> None:
    base = (0.3, 0.0, 0.02, *FLAT)
    carried = AIMS["StackCube"](table_view(privileged((0.1, 0.0, 0.02), CUBE, base, holding=True)))
    np.testing.assert_allclose(carried.position_3, [0.3, 0.0, 0.12])
    on_top = (0.305, 0.0, 0.062, *FLAT)
    let_go = AIMS["StackCube"](table_view(privileged((0.3, 0.0, 0.06), on_top, base, holding=True)))
    np.testing.assert_allclose(let_go.position_3, [0.3, 0.0, 0.06])
    assert let_go.opened


def test_a_push_begins_behind_the_cube_and_goes_through_it() -> None:
    above = AIMS["PushCube"](table_view(privileged((0.05, 0.0, 0.2), CUBE, GOAL)))
    np.testing.assert_allclose(above.position_3, [0.05, 0.0, 0.02])
    through = AIMS["PushCube"](table_view(privileged((0.06, 0.0, 0.02), CUBE, GOAL)))
    np.testing.assert_allclose(through.position_3, [0.13, 0.0, 0.02])
    back = AIMS["PullCube"](table_view(privileged((0.14, 0.0, 0.02), CUBE, GOAL)))
    np.testing.assert_allclose(back.position_3, [0.07, 0.0, 0.02])
    assert not through.opened


def test_a_ball_is_shoved_from_behind_along_the_line_to_its_goal() -> None:
    ball, goal = (0.0, 0.6, 0.035, *FLAT), (0.0, -0.8, 0.001, *FLAT)  # rolls along -y
    above = AIMS["RollBall"](table_view(privileged((0.0, 0.8, 0.3), ball, goal)))
    np.testing.assert_allclose(above.position_3, [0.0, 0.67, 0.135])
    assert abs(np.cos(above.finger_yaw)) == pytest.approx(1.0)
    assert not above.opened
    through = AIMS["RollBall"](table_view(privileged((0.01, 0.66, 0.04), ball, goal)))
    np.testing.assert_allclose(through.position_3, [0.0, 0.45, 0.035])
    beside = AIMS["RollBall"](table_view(privileged((0.05, 0.66, 0.04), ball, goal)))
    np.testing.assert_allclose(beside.position_3[:2], [0.0, 0.67])


def test_actions_are_in_the_frame_of_a_robot_that_faces_elsewhere() -> None:
    view = table_view(privileged((0.0, 0.0, 0.2), CUBE, GOAL))
    aim = Aim(position_3=np.array([0.02, 0.03, 0.2]), finger_yaw=-np.pi / 2, opened=False)
    # It faces along -y: the world's x is on its left, the world's y behind it.
    np.testing.assert_allclose(arm_action(view, aim, -np.pi / 2), [-0.3, 0.2, 0, 0, 0, 0, -1], atol=1e-6)


def test_actions_are_in_units_of_a_tenth_and_turns_have_upstreams_sign() -> None:
    view = table_view(privileged((0.0, 0.0, 0.2), CUBE, GOAL))
    near = Aim(position_3=np.array([0.0, 0.03, 0.2]), finger_yaw=-np.pi / 2 + 0.05, opened=True)
    np.testing.assert_allclose(arm_action(view, near), [0, 0.3, 0, 0, 0, -0.5, 1], atol=1e-6)
    far = Aim(position_3=np.array([0.0, 0.0, -0.8]), finger_yaw=-np.pi / 2 - 0.7, opened=False)
    np.testing.assert_allclose(arm_action(view, far), [0, 0, -0.8, 0, 0, 1, -1], atol=1e-6)


HALF = np.sqrt(0.5)
TIPPED = (HALF, 0.0, HALF, 0.0)
"""A quarter turn about y: the hand points down, its fingers open along y."""
LYING = (0.3, 0.1, 0.02, *FLAT, 0.1, 0.03, 0.04)
"""A thing 4 cm high, narrow along y."""
PLATE = (0.4, 0.0, 0.003, *FLAT, 0.11, 0.11, 0.006)


def on_table(
    hand: tuple[float, float, float],
    thing: tuple[float, ...] = LYING,
    *,
    gripped: bool = False,
    units: tuple[float, float] = (0.05, 0.25),
) -> np.ndarray:
    return np.array([*hand, *TIPPED, *hand, *TIPPED, gripped, *thing, *PLATE, *units])


def test_plate25s_vector_has_the_length_its_benchmark_declares() -> None:
    vector = on_table((0.3, 0.0, 0.2), gripped=True)
    assert len(vector) == PRIVILEGED_DIM == find_benchmark("ManiSkill-Plate25").privileged_dim
    view = plate_view(vector)
    assert view.gripped
    assert (view.metres, view.radians) == (0.05, 0.25)
    np.testing.assert_array_equal(view.plate.size_3, [0.11, 0.11, 0.006])
    assert view.thing.half_height == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("quat", "yaw"),
    [
        (FLAT, np.pi / 2),  # lying as built: y is the narrow side
        ((HALF, 0.0, 0.0, HALF), np.pi),  # a quarter turn about z
        ((HALF, HALF, 0.0, 0.0), -np.pi / 2),  # on its side: z, 4 cm, is level now and narrower than x
    ],
)
def test_fingers_go_across_the_narrower_level_side(quat: tuple[float, ...], yaw: float) -> None:
    thing = plate_view(on_table((0, 0, 0), (0.0, 0.0, 0.0, *quat, 0.1, 0.03, 0.04))).thing
    found = narrowest_yaw(thing.middle.quat_4, thing.size_3)
    assert np.sin(2 * (found - yaw)) == pytest.approx(0.0, abs=1e-9)
    assert abs(np.cos(found - yaw)) == pytest.approx(1.0)


def test_an_object_is_fetched_from_above_and_gripped_no_deeper_than_the_palm_allows() -> None:
    above = plate_aim(plate_view(on_table((0.2, 0.1, 0.2))))
    # Half of its height is 2 cm; fingers reach 1.8 cm below its top: 2 mm above the middle, 8 cm higher for now.
    np.testing.assert_allclose(above.position_3, [0.3, 0.1, 0.102])
    assert above.opened
    there = plate_aim(plate_view(on_table((0.3, 0.1, 0.025))))
    np.testing.assert_allclose(there.position_3, [0.3, 0.1, 0.022])
    assert not there.opened


def test_it_is_carried_over_the_plate_let_go_there_and_left() -> None:
    carried = plate_aim(plate_view(on_table((0.3, 0.1, 0.03), gripped=True)))
    # Its place is 3 + 3 + 20 + 4 mm up; far away, 6 cm higher; the hand is 1 cm above its middle.
    np.testing.assert_allclose(carried.position_3, [0.4, 0.0, 0.1])
    assert not carried.opened
    placed = (0.41, 0.0, 0.026, *LYING[3:])
    left = plate_aim(plate_view(on_table((0.41, 0.0, 0.03), placed, gripped=True)))
    np.testing.assert_allclose(left.position_3, [0.41, 0.0, 0.126])
    assert left.opened


def test_plate25s_actions_are_relative_to_the_last_target_and_in_the_environments_units() -> None:
    aim = Aim(position_3=np.array([0.3, 0.02, 0.2]), finger_yaw=np.pi / 2 + 0.1, opened=False)
    scaled = plate_view(on_table((0.3, 0.0, 0.2)))
    np.testing.assert_allclose(plate_action(scaled, aim), [0, 0.4, 0, 0, 0, 0.4, -1], atol=1e-6)
    physical = plate_view(on_table((0.3, 0.0, 0.9), units=(1.0, 1.0)))
    np.testing.assert_allclose(plate_action(physical, aim)[:3], [0, 0.0011, -0.04], atol=1e-4)
