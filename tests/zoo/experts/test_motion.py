"""Where a hand goes next: worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from vla_gym.rotations import axes_of
from zoo.experts.motion import downward, funnel, limited, nearest_yaw, yaw_of


def test_a_step_keeps_its_direction_and_loses_length() -> None:
    np.testing.assert_allclose(limited(np.array([3.0, 0.0, -4.0]), 1.0), [0.6, 0.0, -0.8])
    np.testing.assert_array_equal(limited(np.array([0.3, 0.0, 0.4]), 1.0), [0.3, 0.0, 0.4])
    np.testing.assert_array_equal(limited(np.zeros(3), 1.0), np.zeros(3))


@pytest.mark.parametrize(
    ("away", "above"),
    [
        (0.0, 0.0),
        (0.01, 0.0),  # the edge of the mouth
        (0.03, 0.04),  # 2 cm beyond it, slope 2
        (0.5, 0.08),  # the highest
    ],
)
def test_a_goal_is_reached_from_above(away: float, above: float) -> None:
    goal_3 = np.array([0.1, -0.2, 0.02])
    now_3 = goal_3 + np.array([0.6 * away, -0.8 * away, 0.3])  # its height does not matter
    point_3 = funnel(now_3, goal_3, mouth=0.01, slope=2.0, height=0.08)
    np.testing.assert_allclose(point_3, [0.1, -0.2, 0.02 + above])


def test_directions_from_above() -> None:
    turned = np.array([np.cos(0.2), 0.0, 0.0, np.sin(0.2)])  # 0.4 rad about z
    assert yaw_of(turned, 0) == pytest.approx(0.4)
    assert yaw_of(turned, 1) == pytest.approx(0.4 + np.pi / 2)


@pytest.mark.parametrize(
    ("now", "wanted", "nearest"),
    [
        (0.0, 0.2, 0.2),
        (0.0, 1.5, 1.5 - np.pi / 2),  # another side of the square is nearer
        (2.0, 0.3, 0.3 + np.pi / 2),
        (-3.0, 0.0, -np.pi),
    ],
)
def test_the_nearest_side_of_a_square(now: float, wanted: float, nearest: float) -> None:
    assert nearest_yaw(now, wanted, np.pi / 2) == pytest.approx(nearest)


@pytest.mark.parametrize("approach", [0, 2])
@pytest.mark.parametrize("yaw", [0.0, 0.7, -2.0])
def test_a_hand_that_points_down(approach: int, yaw: float) -> None:
    axes = axes_of(downward(yaw, approach))
    np.testing.assert_allclose(axes[:, approach], [0.0, 0.0, -1.0], atol=1e-12)
    np.testing.assert_allclose(axes[:, 1], [np.cos(yaw), np.sin(yaw), 0.0], atol=1e-12)
