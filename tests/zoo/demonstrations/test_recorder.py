"""Which start states an expert tries, and what is kept of an episode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from vla_gym import VLAVectorEnv, find_benchmark, make_vec
from vla_gym.specs import StartState, Task
from zoo.demonstrations.recorder import PRIVILEGED, all_attempts, demonstrate

TOY = find_benchmark("Toy-Reach")


def task(num_trials: int) -> Task:
    return Task(name="t", instruction="do it", horizon=10, num_trials=num_trials, suite="s")


def start(task_id: int, trial_id: int) -> StartState:
    return StartState(task_id=task_id, trial_id=trial_id)


def test_tasks_take_turns_and_rounds_come_last() -> None:
    assert all_attempts([task(2), task(1)], 2) == [
        (start(0, 0), 0),
        (start(1, 0), 0),
        (start(0, 1), 0),
        (start(0, 0), 1),
        (start(1, 0), 1),
        (start(0, 1), 1),
    ]


class Constant:
    """Pushes along the first axis as far as its task says, whatever it reads."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def action(self, privileged_P: np.ndarray) -> np.ndarray:
        action_A = np.zeros(TOY.action_dim, dtype=np.float32)
        action_A[0] = 0.25 + privileged_P[0]
        return action_A


@pytest.fixture
def envs(monkeypatch: pytest.MonkeyPatch) -> Iterator[VLAVectorEnv]:
    from vla_gym.adapters.toy import ToyReach

    monkeypatch.setattr(ToyReach, "privileged", lambda self: np.array([0.5]), raising=False)
    made = make_vec(
        replace(TOY, privileged_dim=1), 3, chunk=1, privileged=True, autoreset_mode="disabled", num_workers=0
    )
    yield made
    made.close()


def test_an_episode_holds_a_frame_for_every_step(envs: VLAVectorEnv) -> None:
    first, second = demonstrate(envs, Constant, [(start(0, 0), 0), (start(0, 1), 0)])
    assert (first.start, second.start) == (start(0, 0), start(0, 1))
    assert first.start_state != second.start_state
    assert first.instruction == TOY.tasks[0].instruction
    length = first.length
    assert 0 < length <= TOY.tasks[0].horizon
    assert first.images["image"].shape == (length, *envs.layout.arrays()["image"][0])
    assert first.state_TS.shape == (length, TOY.state_dim)
    np.testing.assert_array_equal(first.action_TA[:, 0], np.full(length, 0.75, np.float32))
    # What the expert saw is kept beside it.
    np.testing.assert_array_equal(first.extra[PRIVILEGED], np.full((length, 1), 0.5, np.float32))
    # The first frame is what the reset showed.
    obs, _ = envs.reset(options={"task_id": 0, "trial_id": 0})
    np.testing.assert_array_equal(first.images["image"][0], obs["image"][0])


def test_noise_moves_the_arm_but_not_what_is_learned(envs: VLAVectorEnv) -> None:
    (calm,) = demonstrate(envs, Constant, [(start(0, 0), 0)])
    (noisy,) = demonstrate(envs, Constant, [(start(0, 0), 0)], noise=0.5)
    beside, again = demonstrate(envs, Constant, [(start(0, 3), 0), (start(0, 0), 0)], noise=0.5)
    (other,) = demonstrate(envs, Constant, [(start(0, 0), 1)], noise=0.5)
    shortest = min(calm.length, noisy.length, other.length)
    np.testing.assert_array_equal(calm.action_TA[:shortest], noisy.action_TA[:shortest])
    assert (calm.images["image"][:shortest] != noisy.images["image"][:shortest]).any()
    assert (other.images["image"][:shortest] != noisy.images["image"][:shortest]).any()
    # The same start state and round show the same episode, whoever plays beside it.
    np.testing.assert_array_equal(again.images["image"], noisy.images["image"])
    assert beside.start == start(0, 3)


def test_more_attempts_than_environments_are_refused(envs: VLAVectorEnv) -> None:
    with pytest.raises(ValueError, match="4 attempts for 3 environments"):
        demonstrate(envs, Constant, [(start(0, trial), 0) for trial in range(4)])
