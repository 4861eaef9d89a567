"""Errors of action conventions; and that a replay names it where the gripper is the wrong way round."""

from __future__ import annotations

import numpy as np
import pytest

from vla_gym import find_benchmark
from vla_gym.specs import Task
from zoo.diagnostics.action_convention_errors import action_convention_errors, corrected
from zoo.diagnostics.expert_replay import replay
from zoo.experts.metaworld import MetaWorldExpert

ACTION = np.array([1, 2, 3, 4, 5, 6, 7], dtype=np.float32)


def test_each_changes_its_own_numbers() -> None:
    undone = {
        error: (matrix @ ACTION).tolist()
        for error, matrix in action_convention_errors(find_benchmark("LIBERO-Object")).items()
    }
    assert undone == {
        "the movement's sign is inverted": [-1, -2, -3, 4, 5, 6, 7],
        "the movement's x and y are exchanged": [2, 1, 3, 4, 5, 6, 7],
        "movements and turns are twice as large as declared": [0.5, 1, 1.5, 2, 2.5, 3, 7],
        "the rotation's sign is inverted": [1, 2, 3, -4, -5, -6, 7],
        "the rotation's axes are in reverse order": [1, 2, 3, 6, 5, 4, 7],
        "the gripper's sign is inverted": [1, 2, 3, 4, 5, 6, -7],
    }


def test_without_turns_and_gripper_nothing_of_them_is_suspected() -> None:
    assert [error for error in action_convention_errors(find_benchmark("Toy-Reach")) if "rotation" in error] == []
    assert "the gripper's sign is inverted" not in action_convention_errors(find_benchmark("Toy-Reach"))
    metaworld = action_convention_errors(find_benchmark("MetaWorld/reach"))
    np.testing.assert_array_equal(metaworld["the gripper's sign is inverted"] @ ACTION[:4], [1, 2, 3, -4])
    np.testing.assert_array_equal(metaworld["the movement's sign is inverted"] @ ACTION[:4], [-1, -2, -3, 4])


class Constant:
    """Always the same action."""

    def __init__(self, task: Task) -> None:
        pass

    def action(self, privileged_P: np.ndarray) -> np.ndarray:
        return ACTION[:2]


def test_a_corrected_expert_acts_through_the_matrix() -> None:
    expert = corrected(Constant, np.array([[0.0, 1.0], [1.0, 0.0]]))(find_benchmark("Toy-Reach").tasks[0])
    action = expert.action(np.zeros(2))
    assert action.tolist() == [2.0, 1.0]
    assert action.dtype == np.float32


@pytest.mark.sim
def test_a_gripper_the_wrong_way_round_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("metaworld")
    right = MetaWorldExpert.action

    def inverted(self: MetaWorldExpert, privileged_P: np.ndarray) -> np.ndarray:
        return right(self, privileged_P) * np.array([1, 1, 1, -1], dtype=np.float32)

    monkeypatch.setattr(MetaWorldExpert, "action", inverted)  # as if the simulator had it the wrong way round
    result = replay("MetaWorld/peg-insert-side", 4)
    assert result.below
    assert result.cause == "the gripper's sign is inverted: with that undone, 4 of 4 failed episodes succeed"
