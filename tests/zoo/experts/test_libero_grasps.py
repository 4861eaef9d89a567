"""Grasps of a carton, a flat box and a bowl, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vla_gym.adapters.libero.scene import Solid
from zoo.experts.libero_grasps import fitting_yaws, plan_grasp

UPRIGHT = np.array([1.0, 0.0, 0.0, 0.0])
ON_ITS_SIDE = np.array([1.0, 1.0, 0.0, 0.0]) / math.sqrt(2)  # a quarter turn about x: its y axis points up
QUARTER_ABOUT_Z = np.array([1.0, 0.0, 0.0, 1.0]) / math.sqrt(2)


def solid(half: tuple[float, float, float], quat: np.ndarray = UPRIGHT, height: float = 0.0) -> Solid:
    return Solid(
        origin_3=np.array([0.1, -0.2, height]), quat_4=quat, middle_3=np.zeros(3), half_3=np.array(half)
    )


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
