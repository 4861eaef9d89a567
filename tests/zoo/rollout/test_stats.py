"""Numbers of rollouts by hand."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import torch

from tests.zoo.rollout.steps import step
from vla_gym.workers.messages import EpisodeStats
from zoo.distributed.process_group import ProcessGroup
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.rollout.buffer import Step
from zoo.rollout.stats import PhaseClock, RolloutRecorder, episode_metrics, log_metrics


def test_episode_numbers():
    episodes = [
        EpisodeRecord(task_id=0, total_reward=1.0, length=4, success_once=True, success_at_end=False),
        EpisodeRecord(task_id=0, total_reward=0.0, length=10, success_once=False, success_at_end=False),
    ]
    assert episode_metrics(episodes) == {
        "rollout/success_once": 0.5,
        "env/success_once": 0.5,
        "env/success_at_end": 0.0,
        "env/return": 0.5,
        "env/return_std": 0.5,
        "env/episode_len": 7.0,
        "env/reward": 0.125,
        "env/num_trajectories": 2.0,
    }
    assert episode_metrics([]) == {}


def made_step(env: int, executed: int, *, task: int, lost: bool = False, total: float | None = None) -> Step:
    """A decision of one sub-environment; with `total` its episode ends, of five steps."""
    done = total is not None
    made = step(
        [env],
        image=np.zeros((1, 1, 1, 3), dtype=np.uint8),
        token=torch.zeros(1, 1, 1),
        logprob=torch.zeros(1, 1, 1),
        value=torch.zeros(1),
        reward=[0.0],
        executed=[executed],
        terminated=[done and not lost],
        truncated=[lost],
    )
    ended = EpisodeStats(total_reward=total or 0.0, length=5, success_once=True, success_at_end=False, seconds=0.0)
    outcome = dataclasses.replace(
        made.outcome,
        episodes=[ended if done and not lost else None],
        lost_n=np.array([lost]),
        task_id_n=np.array([task]),
        trial_id_n=np.array([7]),
    )
    return dataclasses.replace(made, outcome=outcome)


class Clock:
    """In place of an environment."""

    def seconds(self) -> float:
        return 0.5


CLOCK: Any = Clock()


def two_recorders() -> tuple[RolloutRecorder, RolloutRecorder]:
    """Sub-environments 0 and 1 of one rank; sub-environment 2, the first of another."""
    own, other = RolloutRecorder(), RolloutRecorder()
    own.add(0, 0, made_step(0, 3, task=0), CLOCK)
    own.add(0, 0, made_step(1, 3, task=4), CLOCK)
    own.add(1, 0, made_step(1, 3, task=4), CLOCK)
    own.add(1, 0, made_step(0, 1, task=0, total=1.0), CLOCK)
    other.add(0, 2, made_step(0, 2, task=4, total=7.0), CLOCK)
    other.add(1, 2, made_step(0, 0, task=4, total=8.0, lost=True), CLOCK)
    return own, other


def test_records_of_ranks_join_in_the_order_of_one_process():
    own, other = two_recorders()
    own.merge(json.loads(json.dumps(other.own())))
    stats = own.finish(ProcessGroup(), 100)
    # Decision 0: 3 + 3 + 2 simulator steps; decision 1: 3 + 1.
    assert (stats.num_sim_steps, stats.num_timesteps) == (12, 112)
    # The lost decision ran nothing.
    assert (stats.num_decisions, stats.num_lost) == (5, 1)
    assert stats.tasks == {0, 4}
    assert [(episode.info["r"], episode.num_timesteps) for episode in stats.episodes] == [(7.0, 108), (1.0, 112)]
    record = EpisodeRecord(task_id=0, trial_id=7, total_reward=1.0, length=5, success_once=True, success_at_end=False)
    assert stats.episodes[1].record == record


def test_an_interrupted_rollout_is_dropped():
    own, _ = two_recorders()
    own.begin()
    own.add(0, 0, made_step(0, 2, task=1), CLOCK)
    stats = own.finish(ProcessGroup(), 0)
    assert (stats.num_timesteps, stats.num_decisions, stats.episodes, stats.tasks) == (2, 1, (), {1})


def test_a_line_of_the_log_is_of_several_rollouts():
    own, other = two_recorders()
    values = log_metrics([own.finish(ProcessGroup(), 0), other.finish(ProcessGroup(), 10)], PhaseClock())
    # Returns 1 and 7; the lost episode counts apart.
    assert values["env/return"] == 4.0
    assert values["env/num_trajectories"] == 2.0
    assert values["env/episodes_lost"] == 1.0
    assert "env/return" not in log_metrics([], PhaseClock())
