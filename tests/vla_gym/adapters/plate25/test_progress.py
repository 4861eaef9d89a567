from __future__ import annotations

import numpy as np
import pytest

from vla_gym.adapters.plate25.simulator import Progress, grips, lies_on, task_progress, world_box

PLATE = np.array([0.11, 0.11, 0.006])
CUBE = np.array([0.04, 0.04, 0.04])


def test_world_box() -> None:
    # A 2 x 1 x 1 box turned 90 degrees about z is 1 x 2 x 1; turned 45 degrees it is 3/sqrt(2) wide both ways.
    quarter = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(world_box(np.array([2.0, 1.0, 1.0]), quarter), [1, 2, 1])
    c = np.sqrt(0.5)
    eighth = np.array([[c, -c, 0.0], [c, c, 0.0], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(world_box(np.array([2.0, 1.0, 1.0]), eighth), [3 * c, 3 * c, 1])


@pytest.mark.parametrize(
    ("offset", "force", "on"),
    [
        ((0.0, 0.0, 0.023), 0.1, True),
        ((0.064, 0.0, 0.023), 0.1, True),  # 0.055 + 0.01 is the limit
        ((0.066, 0.0, 0.023), 0.1, False),
        ((0.05, 0.05, 0.023), 0.1, False),  # 0.0707 from the centre
        ((0.0, 0.0, 0.0), 0.1, False),  # not above
        ((0.0, 0.0, 0.072), 0.1, True),  # 0.003 + 0.02 + 0.05 = 0.073 is the limit
        ((0.0, 0.0, 0.074), 0.1, False),
        ((0.0, 0.0, 0.023), 0.03, False),  # more than 0.03 N
    ],
)
def test_lies_on(offset: tuple[float, float, float], force: float, on: bool) -> None:
    assert lies_on(np.array(offset), CUBE, PLATE, force) is on


def test_grips() -> None:
    opening = np.array([0.0, 1.0, 0.0])
    assert grips(np.array([0.0, 0.6, 0.0]), opening)
    assert not grips(np.array([0.0, 0.4, 0.0]), opening)  # less than 0.5 N
    assert not grips(np.array([0.6, 0.0, 0.0]), opening)  # 90 degrees
    near = np.deg2rad(84.0)
    assert grips(np.array([np.sin(near), np.cos(near), 0.0]), opening)
    assert not grips(np.zeros(3), opening)


def test_levels_and_memory() -> None:
    state, paid = Progress(), []
    #          grasping, on plate
    script = [(0, 1), (1, 0), (0, 0), (1, 0), (1, 0), (1, 0), (1, 0), (1, 0), (1, 1), (0, 0), (0, 1)]
    for grasping, on_plate in script:
        before = state
        state = task_progress(before, grasping=bool(grasping), on_plate=bool(on_plate))
        paid.append(round(state.level - before.level, 6))
    # On the plate without a grasp pays nothing. Grasped: 0.1. Five in a row (steps 4-8): 0.1. On the plate while in
    # the gripper: 1. Off it: -1. On it again: 1.
    assert paid == [0, 0.1, 0, 0, 0, 0, 0, 0.1, 1.0, -1.0, 1.0]
    assert sum(paid) == pytest.approx(1.2)
    assert state.success
    assert state.grasped
    assert state.held


def test_no_history_pays_more_than_1_2() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        state = Progress()
        for grasping, on_plate in rng.random((80, 2)) < rng.random(2):
            state = task_progress(state, grasping=bool(grasping), on_plate=bool(on_plate))
            assert 0.0 <= state.level <= 1.2
