from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scripted_simulator import Scripted, scripted_benchmark

from vla_gym.observation import ObservationLayout
from vla_gym.simulator import SimStep
from vla_gym.specs import RewardKind, RewardRule, StartState
from vla_gym.workers.worker import SubEnv

LAYOUT = ObservationLayout(cameras=("image",), image_size=8, state_dim=1)


def make_slot(
    lengths: tuple[int, ...] = (3, 7, 12), *, horizon: int = 100, rule: RewardRule | None = None, failure: str = ""
) -> tuple[SubEnv, Scripted]:
    tasks = scripted_benchmark(lengths, horizon=horizon).tasks
    simulator = Scripted(tasks, 8, ("image",), lengths=lengths, failure=failure)
    return SubEnv(simulator, tasks, rule or RewardRule(), LAYOUT), simulator


def cell(task_id: int) -> StartState:
    return StartState(task_id=task_id, trial_id=0)


ACTION_5A = np.zeros((5, 2), dtype=np.float32)


def test_a_chunk_stops_where_the_episode_ends() -> None:
    slot, _ = make_slot()
    assert slot.reset(cell(1)).start_state == "0100"
    first = slot.step(ACTION_5A)
    assert (first.step_rewards, first.terminated, first.episode) == ((0.0,) * 5, False, None)
    second = slot.step(ACTION_5A)
    assert (second.step_rewards, second.terminated, second.success) == ((0.0, 1.0), True, True)
    assert second.episode is not None
    assert (second.episode.length, second.episode.total_reward) == (7, 1.0)
    assert (second.episode.success_once, second.episode.success_at_end) == (True, True)
    assert second.episode.seconds > 0


def test_the_time_limit_counts_simulator_steps() -> None:
    slot, _ = make_slot((0,), horizon=8)
    slot.reset(cell(0))
    slot.step(ACTION_5A)
    last = slot.step(ACTION_5A)
    assert (len(last.step_rewards), last.terminated, last.truncated) == (3, False, True)
    assert last.episode is not None
    assert (last.episode.length, last.episode.success_once) == (8, False)


def test_a_simulator_may_cut_an_episode_off_itself() -> None:
    class Cut(Scripted):
        def step(self, action_A: np.ndarray) -> SimStep:
            return dataclasses.replace(super().step(action_A), truncated=self._count == 2)

    tasks = scripted_benchmark((0,)).tasks
    slot = SubEnv(Cut(tasks, 8, ("image",), lengths=(0,)), tasks, RewardRule(), LAYOUT)
    slot.reset(cell(0))
    last = slot.step(ACTION_5A)
    assert (len(last.step_rewards), last.terminated, last.truncated) == (2, False, True)


def test_solving_on_the_last_allowed_step_is_no_truncation() -> None:
    slot, _ = make_slot((5,), horizon=5)
    slot.reset(cell(0))
    last = slot.step(ACTION_5A)
    assert (last.terminated, last.truncated) == (True, False)


@pytest.mark.parametrize(
    ("kind", "paid"),
    [
        ("sparse", (0.0, 5.0, 5.0, 0.0)),
        ("differenced", (0.0, 5.0, 0.0, -5.0)),
        ("step_penalty", (-1.0, 4.0, 4.0, -1.0)),
    ],
)
def test_each_kind_of_reward_on_rewards_0_1_1_0(kind: RewardKind, paid: tuple[float, ...]) -> None:
    class Given(Scripted):
        def step(self, action_A: np.ndarray) -> SimStep:
            return SimStep(reward=float(action_A[0]), success=False, terminated=False)

    tasks = scripted_benchmark((0,)).tasks
    slot = SubEnv(Given(tasks, 8, ("image",), lengths=(0,)), tasks, RewardRule(kind=kind, scale=5.0), LAYOUT)
    slot.reset(cell(0))
    assert slot.step(np.array([[0, 0], [1, 0], [1, 0], [0, 0]], dtype=np.float32)).step_rewards == paid


def test_a_report_holds_python_s_own_numbers() -> None:
    slot, _ = make_slot(failure="numpy numbers")
    slot.reset(cell(0))
    last = slot.step(ACTION_5A)
    assert last.episode is not None
    assert {type(reward) for reward in last.step_rewards} == {type(last.episode.total_reward)} == {float}
    assert last.success is last.terminated is True
    assert last.episode.success_once is last.episode.success_at_end is True


def test_replay_reaches_the_same_place_without_rendering() -> None:
    slot, simulator = make_slot()
    report = slot.replay(cell(1), np.zeros((6, 2), dtype=np.float32))
    assert (report.start_state, report.terminated, len(report.step_rewards)) == ("0100", False, 6)
    assert simulator.renders == 0
    last = slot.step(ACTION_5A)
    assert last.episode is not None
    assert (last.terminated, last.episode.length) == (True, 7)
