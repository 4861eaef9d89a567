"""Stages step by themselves, side by side, and come to what stepping all slots at once comes to."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from scripted_simulator import scripted_benchmark

from vla_gym import BadValue, VLAVectorEnv, WorkerFailed, WorkerRestarted
from vla_gym.vector.stage import CommandRunner
from vla_gym.vector.start_states import make_schedule
from vla_gym.workers.messages import Command, PendingCommands, Report
from vla_gym.workers.pool import Pool

Make = Callable[..., VLAVectorEnv]
KEYS = ("success", "task_id", "trial_id", "executed", "start_state", "step_rewards", "lost")


def begun(make: Make, num_envs: int = 4, **options: Any) -> VLAVectorEnv:
    envs = make(
        options.pop("benchmark", None), num_envs, chunk=2, schedule="grid", autoreset_mode="disabled", **options
    )
    envs.reset()
    return envs


def quiet(num_slots: int) -> np.ndarray:
    return np.zeros((num_slots, 2, 2), dtype=np.float32)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_stages_under_way_together_give_what_one_step_of_all_slots_gives(make: Make, num_workers: int):
    whole = begun(make)
    parts = begun(make, num_workers=num_workers, pipeline_stages=2)
    for _ in range(3):
        obs, reward_N, terminated_N, truncated_N, infos = whole.step(quiet(4))
        stages = parts.stages
        for stage in stages:
            stage.send_step(quiet(2))
        for stage in stages:
            outcome = stage.receive()
            here = stage.part
            for key in ("image", "state"):
                assert np.array_equal(outcome.obs[key], obs[key][here])
            assert outcome.obs["instruction"] == obs["instruction"][here]
            assert np.array_equal(outcome.reward_n, reward_N[here])
            assert np.array_equal(outcome.terminated_n, terminated_N[here])
            assert np.array_equal(outcome.truncated_n, truncated_N[here])
            for key in KEYS:
                assert np.array_equal(outcome.infos()[key], infos[key][here]), key


def test_an_ended_slot_is_held_until_its_reset(make: Make):
    # Every episode ends after 3 steps: one step into its second decision.
    envs = begun(make, benchmark=scripted_benchmark((3,), num_trials=8), pipeline_stages=2)
    stage = envs.stages[0]
    stage.send_step(quiet(2))
    assert not stage.receive().terminated_n.any()
    stage.send_step(quiet(2))
    outcome = stage.receive()
    assert outcome.terminated_n.tolist() == [True, True]
    assert outcome.infos()["executed"].tolist() == [1, 1]
    assert outcome.infos()["episode"]["length"].tolist() == [3, 3]
    stage.send_reset(np.array([True, False]))
    fresh = stage.receive()
    assert fresh.terminated_n.tolist() == [False, True]
    assert fresh.obs["state"][:, 0].tolist() == [0.0, 3.0]
    stage.send_step(quiet(2))
    assert stage.receive().infos()["executed"].tolist() == [2, 0]
    assert envs.stages[1].running_n.all()


def test_the_whole_environment_waits_until_stages_are_received(make: Make):
    envs = begun(make, pipeline_stages=2)
    stage = envs.stages[1]
    stage.send_step(quiet(2))
    with pytest.raises(gym.error.AlreadyPendingCallError, match=r"rollout is stepping.*receive"):
        envs.step(quiet(4))
    assert stage.pending
    stage.receive()
    envs.step(quiet(4))


def test_a_bad_action_names_the_slot_of_the_environment(make: Make):
    envs = begun(make, pipeline_stages=2)
    actions = quiet(2)
    actions[1, 0, 0] = np.nan
    with pytest.raises(BadValue, match="slot 3"):
        envs.stages[1].send_step(actions)


def failing(make: Make, **options: Any) -> VLAVectorEnv:
    """Four slots, both stages in one worker; the first action above 0.9 kills it."""
    benchmark = scripted_benchmark((9, 9, 9), num_trials=8, failure="die")
    return begun(make, benchmark=benchmark, num_workers=1, pipeline_stages=2, **options)


def deadly() -> np.ndarray:
    return quiet(2) + np.float32(0.95)


def test_a_dead_worker_loses_the_steps_of_every_stage_it_owed(make: Make):
    envs = failing(make, on_worker_error="restart")
    first, second = envs.stages
    first.send_step(deadly())
    second.send_step(quiet(2))
    with pytest.warns(WorkerRestarted):
        lost = first.receive()
    assert lost.infos()["lost"].all()
    assert lost.truncated_n.all()
    also = second.receive()
    assert also.infos()["lost"].all()
    assert also.infos()["executed"].tolist() == [0, 0]
    for stage in (first, second):
        stage.send_reset(np.array([True, True]))
    for stage in (first, second):
        assert not stage.receive().truncated_n.any()


def test_a_reset_owed_by_a_dead_worker_is_asked_again(make: Make):
    envs = failing(make, on_worker_error="restart")
    first, second = envs.stages
    first.send_step(deadly())
    second.send_reset(np.array([True, True]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WorkerRestarted)
        first.receive()
    begun_again = second.receive()
    assert not begun_again.infos()["lost"].any()
    assert begun_again.obs["state"][:, 0].tolist() == [0.0, 0.0]
    second.send_step(quiet(2))
    assert second.receive().infos()["executed"].tolist() == [2, 2]


class Recorded(Pool):
    """Answers every command with one report."""

    memory = SimpleNamespace(observation={})  # type: ignore[assignment]
    last_failure = "no display"

    def __init__(self) -> None:
        self.report = Report(start_state="ab")
        self.sent: list[Command] = []

    def send(self, commands):  # type: ignore[no-untyped-def]
        self.sent += commands
        return PendingCommands(commands, {command.slot: self.report for command in commands})

    def close(self) -> None:
        pass


def test_three_losses_in_a_row_are_no_accident() -> None:
    benchmark, pool = scripted_benchmark((3, 7), num_trials=1), Recorded()
    runner = CommandRunner(benchmark, 2, 4, make_schedule("random", benchmark.tasks, num_envs=2), pool)
    runner.run(runner.begin_commands([0, 1]))
    pool.report = Report(truncated=True, lost=True)
    step = runner.step_commands([0], [np.zeros((4, 2), dtype=np.float32)])
    runner.run(step)
    runner.run(step)
    with pytest.raises(WorkerFailed, match=r"3 episodes in a row were lost .*The last failure: no display"):
        runner.run(step)
