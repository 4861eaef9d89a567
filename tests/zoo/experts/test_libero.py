"""LIBERO's expert: its grasps and waypoints by hand, its stages on a stub of a world, and real tasks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from vla_gym import find_benchmark, make_vec
from vla_gym.adapters.libero.scene import Scene, Solid
from vla_gym.specs import StartState, Task
from zoo.demonstrations.recorder import demonstrate
from zoo.experts.base import expert_class
from zoo.experts.libero import (
    RIM_AZIMUTH,
    WAYPOINT,
    LiberoExpert,
    Plan,
    Stage,
    fitting_yaws,
    has_slipped,
    is_over,
    make_plan,
    plan_grasp,
)

DOWN = np.array([0.0, 1.0, 0.0, 0.0])  # fingers close along the world's -y
TASK = Task(name="put", instruction="put it", horizon=100, num_trials=1, suite="libero_object")


def block(x: float, y: float, z: float, half: tuple[float, float, float]) -> Solid:
    return Solid(
        origin_3=np.array([x, y, z]),
        quat_4=np.array([1.0, 0.0, 0.0, 0.0]),
        middle_3=np.zeros(3),
        half_3=np.array(half),
    )


def scene(hand: tuple[float, float, float] = (0.0, 0.0, 0.3), thing_height: float = 0.03) -> Scene:
    """A 4 x 4 x 6 cm block at x = 10 cm; a basket at y = 20 cm, from the floor to 14 cm."""
    return Scene(
        hand_3=np.array(hand),
        hand_quat_4=DOWN,
        thing=block(0.1, 0.0, thing_height, (0.02, 0.02, 0.03)),
        target=block(0.0, 0.2, 0.07, (0.06, 0.06, 0.07)),
    )


@pytest.fixture
def plan() -> Plan:
    return make_plan(scene(), RIM_AZIMUTH)


def test_the_plan(plan: Plan) -> None:
    np.testing.assert_allclose(plan.grasp.point_3, [0.1, 0.0, 0.042])  # 1.8 cm below the top
    assert plan.hold == pytest.approx(0.012)
    assert plan.carry_height == pytest.approx(0.14 + 0.06)


def test_a_thing_in_a_drawer_is_lifted_out_before_it_goes_down() -> None:
    high = replace(scene(), thing=block(0.1, 0.0, 0.63, (0.02, 0.02, 0.03)))
    assert make_plan(high, RIM_AZIMUTH).carry_height == pytest.approx(0.6 + 0.08)


def test_where_the_hand_goes(plan: Plan) -> None:
    near = scene((0.1, 0.01, 0.2))
    np.testing.assert_allclose(WAYPOINT[Stage.APPROACH](near, plan), [0.1, 0.0, 0.112])
    far = scene((0.1, 0.09, 0.2))  # 6 cm outside the funnel's mouth: 9 cm higher
    np.testing.assert_allclose(WAYPOINT[Stage.APPROACH](far, plan), [0.1, 0.0, 0.202])
    np.testing.assert_allclose(WAYPOINT[Stage.DESCEND](near, plan), [0.1, 0.0, 0.042])
    held = scene((0.1, 0.0, 0.042))
    np.testing.assert_allclose(WAYPOINT[Stage.RAISE](held, plan), [0.1, 0.0, 0.242])  # by 20 cm
    np.testing.assert_allclose(WAYPOINT[Stage.CARRY](held, plan), [0.0, 0.2, 0.242])
    # The block would stand in the basket with the hand at 4.2 cm; the basket's top keeps it above 14 cm.
    np.testing.assert_allclose(WAYPOINT[Stage.LOWER](held, plan), [0.0, 0.2, 0.14])


def test_a_block_left_behind_has_slipped(plan: Plan) -> None:
    lifted = scene((0.1, 0.0, 0.1))  # 7 cm over a block that stands on the floor, held 1.2 cm from its centre
    assert has_slipped(Stage.RAISE, lifted, plan)
    assert not has_slipped(Stage.DESCEND, lifted, plan)
    assert not has_slipped(Stage.RAISE, scene((0.1, 0.0, 0.242), thing_height=0.23), plan)


def test_stages_end_by_arriving_by_time_or_by_patience(plan: Plan) -> None:
    assert is_over(Stage.DESCEND, 1, scene((0.1, 0.0, 0.047)), plan)
    assert not is_over(Stage.DESCEND, 1, scene((0.1, 0.0, 0.049)), plan)
    turned = replace(scene((0.1, 0.0, 0.042)), hand_quat_4=np.array([0.0, np.cos(0.1), np.sin(0.1), 0.0]))
    assert not is_over(Stage.DESCEND, 1, turned, plan)  # by 0.2 rad
    assert not is_over(Stage.GRASP, 8, scene(), plan)
    assert is_over(Stage.GRASP, 9, scene(), plan)
    assert is_over(Stage.DESCEND, 40, scene(), plan)


def test_actions_are_ways_over_the_controllers_range() -> None:
    expert = LiberoExpert(TASK)
    action = expert.action(scene((0.1, 0.01, 0.132)).to_vector())
    # 1 cm in -y and 2 cm down, in units of 5 cm; the hand is turned right; open.
    np.testing.assert_allclose(action, [0, -0.2, -0.4, 0, 0, 0, -1], atol=1e-6)
    assert action.dtype == np.float32
    assert np.abs(LiberoExpert(TASK).action(scene((2.0, 2.0, 2.0)).to_vector())).max() == 1.0


def test_a_perfect_world_sees_every_stage_in_order() -> None:
    """The hand goes a third of what is asked; a closed hand that is at the block takes it along."""
    expert, now, seen = LiberoExpert(TASK), scene(), []
    for _ in range(150):
        action = expert.action(now.to_vector())
        if expert.stage not in seen:
            seen.append(expert.stage)
        step_3 = action[:3] * 0.05 / 3
        grip = action[6] > 0 and np.linalg.norm(now.hand_3 - now.thing.centre_3) < 0.02
        lifted = replace(now.thing, origin_3=now.thing.origin_3 + step_3) if grip else now.thing
        now = replace(now, hand_3=now.hand_3 + step_3, thing=lifted)
    assert seen == list(Stage)
    np.testing.assert_allclose(now.thing.origin_3[:2], [0.0, 0.2], atol=0.012)


UPRIGHT = np.array([1.0, 0.0, 0.0, 0.0])
ON_ITS_SIDE = np.array([1.0, 1.0, 0.0, 0.0]) / math.sqrt(2)  # a quarter turn about x: its y axis points up
QUARTER_ABOUT_Z = np.array([1.0, 0.0, 0.0, 1.0]) / math.sqrt(2)


def solid(half: tuple[float, float, float], quat: np.ndarray = UPRIGHT, height: float = 0.0) -> Solid:
    return Solid(origin_3=np.array([0.1, -0.2, height]), quat_4=quat, middle_3=np.zeros(3), half_3=np.array(half))


def test_a_flat_box_is_taken_across_its_narrow_side_just_above_the_floor() -> None:
    box = solid((0.041, 0.021, 0.009), height=0.009)
    grasp = plan_grasp(box, hand_yaw=0.3)
    assert fitting_yaws(box) == [pytest.approx(math.pi / 2)]  # 8.2 cm along x are too wide
    assert grasp.finger_yaw == pytest.approx(math.pi / 2)
    # Its top is at 1.8 cm; 1.8 cm below that is the floor, so the least height of a grip decides.
    np.testing.assert_allclose(grasp.point_3, [0.1, -0.2, 0.008])


def test_it_turns_with_the_box() -> None:
    (yaw,) = fitting_yaws(solid((0.041, 0.021, 0.009), QUARTER_ABOUT_Z))
    assert math.cos(yaw) == pytest.approx(-1.0)


def test_a_carton_that_stands_on_its_own_y_axis_is_taken_near_its_top() -> None:
    carton = solid((0.026, 0.07, 0.03), ON_ITS_SIDE, height=0.07)
    grasp = plan_grasp(carton, hand_yaw=0.1)
    np.testing.assert_allclose(grasp.point_3, [0.1, -0.2, 0.14 - 0.018])
    assert grasp.finger_yaw == pytest.approx(0.0)  # x and z lie, both fit; x is the nearer to the hand


def test_half_a_turn_of_the_fingers_is_none() -> None:
    box = solid((0.02, 0.05, 0.02))
    assert plan_grasp(box, hand_yaw=3.0).finger_yaw == pytest.approx(math.pi)


def test_what_is_too_wide_is_taken_by_its_rim() -> None:
    bowl = solid((0.053, 0.053, 0.025), height=0.025)
    grasp = plan_grasp(bowl, hand_yaw=-math.pi / 2, rim_azimuth=3 * math.pi / 4)
    away = 0.05 / math.sqrt(2)  # 5.3 cm less the wall, at 135 degrees
    np.testing.assert_allclose(grasp.point_3, [0.1 - away, -0.2 + away, 0.05 - 0.018])
    assert grasp.finger_yaw == pytest.approx(-math.pi / 4)  # half a turn from 135 degrees


@pytest.mark.sim
@pytest.mark.parametrize("env_id", ["LIBERO-Object/5", "LIBERO-Spatial/2"])
def test_it_solves_a_can_and_a_bowl(env_id: str) -> None:
    pytest.importorskip("libero")
    benchmark = replace(find_benchmark(env_id), cameras=())
    envs = make_vec(benchmark, 1, chunk=1, privileged=True, autoreset_mode="disabled", num_workers=0)
    try:
        (shown,) = demonstrate(envs, expert_class(benchmark), [(StartState(task_id=0, trial_id=3), 0)])
    finally:
        envs.close()
    assert shown.success
    assert shown.length < 140
