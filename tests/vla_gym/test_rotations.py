"""Rotation formats, worked out by hand."""

from __future__ import annotations

import numpy as np

from vla_gym.rotations import axes_of, axis_angle_from_quat_xyzw, multiply, turn_between

HALF = np.sqrt(0.5)
UP = np.array([HALF, 0.0, 0.0, HALF])
"""A quarter turn about z, (w, x, y, z)."""
OVER = np.array([HALF, HALF, 0.0, 0.0])
"""A quarter turn about x."""
NONE = np.array([1.0, 0.0, 0.0, 0.0])


def test_axis_angle_keeps_the_sign_of_w() -> None:
    np.testing.assert_allclose(axis_angle_from_quat_xyzw(np.array([0, 0, HALF, HALF])), [0, 0, np.pi / 2])
    np.testing.assert_allclose(axis_angle_from_quat_xyzw(np.array([0, 0, HALF, -HALF])), [0, 0, 1.5 * np.pi])


def test_a_product_turns_by_its_right_side_first() -> None:
    # About x, y comes to point along z, where the turn about z leaves it; x comes to point along y.
    axes = axes_of(multiply(UP, OVER))
    np.testing.assert_allclose(axes, [[0, 0, 1], [1, 0, 0], [0, 1, 0]], atol=1e-12)


def test_the_turn_from_one_rotation_to_another() -> None:
    np.testing.assert_allclose(turn_between(NONE, UP), [0, 0, np.pi / 2])
    np.testing.assert_allclose(turn_between(UP, NONE), [0, 0, -np.pi / 2])
    np.testing.assert_allclose(turn_between(NONE, -UP), [0, 0, np.pi / 2])  # the same rotation as UP
    np.testing.assert_allclose(turn_between(UP, multiply(OVER, UP)), [np.pi / 2, 0, 0], atol=1e-12)
    np.testing.assert_array_equal(turn_between(UP, UP), np.zeros(3))
