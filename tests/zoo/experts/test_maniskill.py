"""ManiSkill's experts: where the hand goes next, worked out by hand; and that they solve their tasks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vla_gym import find_benchmark, make_vec
from vla_gym.adapters.maniskill.tasks import TASKS
from vla_gym.specs import StartState
from zoo.demonstrations.recorder import demonstrate
from zoo.experts.base import expert_class
from zoo.experts.maniskill import AIMS, arm_action, pick_cube, table_view
from zoo.experts.motion import Aim

DOWN = (0.0, 1.0, 0.0, 0.0)
"""Half a turn about x: the hand points down, its fingers open along y."""
LONGEST_SHOWN = {"RollBall": 70}
"""Steps; the ball needs half of them to roll."""
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


@pytest.mark.sim
@pytest.mark.parametrize("name", AIMS)
def test_they_solve_their_tasks(name: str) -> None:
    pytest.importorskip("mani_skill")
    benchmark = replace(find_benchmark(f"ManiSkill/{name}"), cameras=())
    envs = make_vec(benchmark, 2, chunk=1, privileged=True, autoreset_mode="disabled", num_workers=0)
    try:
        starts = [(StartState(task_id=0, trial_id=trial), 0) for trial in (0, 49)]
        shown = demonstrate(envs, expert_class(benchmark), starts)
    finally:
        envs.close()
    for episode in shown:
        assert episode.success
        assert episode.length <= LONGEST_SHOWN.get(name, 40)
