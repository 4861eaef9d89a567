from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box
from scripted_simulator import scripted_benchmark

from vla_gym.errors import BadValue
from vla_gym.specs import StartState
from vla_gym.vector.sb3 import join_options
from vla_gym.vector.stage import read_actions
from vla_gym.vector.start_states import read_reset_options

RUNNING = np.array([True, False])
SPACE = Box(-1, 1, (3, 2), np.float32)
TASKS = scripted_benchmark((1, 1), num_trials=4).tasks


def test_actions_are_copied_and_clipped() -> None:
    given = np.full((2, 3, 2), 1.5)
    read = read_actions(given, RUNNING, SPACE)
    assert read.dtype == np.float32
    assert (read == 1.0).all()
    assert (given == 1.5).all()


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (3, 2), (1, 3, 2), (2, 3, 3), (12,)])
def test_a_wrong_shape_names_both(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadValue, match=r"expected \[num_envs, chunk, action_dim\] = \[2, 3, 2\]$"):
        read_actions(np.zeros(shape), RUNNING, SPACE)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_only_running_slots_must_be_finite(value: float) -> None:
    action = np.zeros((2, 3, 2))
    action[1, 0, 0] = value
    assert np.isfinite(read_actions(action, RUNNING, SPACE)).all()
    action[0, 2, 1] = value
    with pytest.raises(BadValue, match=r"actions\[0, 2, 1\] is -?(nan|inf)"):
        read_actions(action, RUNNING, SPACE)


def test_mask_and_cells() -> None:
    mask_N = np.array([False, True])
    mask, cells = read_reset_options({"reset_mask": mask_N, "task_id": 1, "trial_id": [0, 3]}, 2, TASKS)
    assert mask is not mask_N
    assert mask is not None
    assert mask.tolist() == [False, True]
    assert cells == {1: StartState(task_id=1, trial_id=3)}


@pytest.mark.parametrize(
    ("task_id", "trial_id", "message"),
    [
        (2, 0, r"task_id .* in 0 .. 1, got 2"),
        (-1, 0, "task_id .* got -1"),
        (0, 4, r"trial_id .* in 0 .. 3 .*got 4"),
        ([0, 0, 0], 0, "an integer or 2 integers"),
        (0.5, 0, "float64"),
    ],
)
def test_wrong_cells(task_id: object, trial_id: object, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        read_reset_options({"task_id": task_id, "trial_id": trial_id}, 2, TASKS)


def test_the_options_of_each_slot_become_those_of_all() -> None:
    joined = join_options([{"task_id": 1, "trial_id": 0}, {"trial_id": np.int64(3), "task_id": 0}], 2)
    assert {key: value.tolist() for key, value in joined.items()} == {"task_id": [1, 0], "trial_id": [0, 3]}
    assert read_reset_options(joined, 2, TASKS)[1] == {
        0: StartState(task_id=1, trial_id=0),
        1: StartState(task_id=0, trial_id=3),
    }
    assert join_options([{}, {}], 2) == {}
