"""Numbers of rollouts by hand."""

from __future__ import annotations

import time

import pytest

from zoo.evaluation.evaluator import EpisodeRecord
from zoo.rollout.stats import PhaseClock, episode_metrics


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
        "env/episode_len": 7.0,
        "env/reward": 0.125,
        "env/num_trajectories": 2.0,
    }
    assert episode_metrics([]) == {}


def test_phases_add_up_and_start_anew():
    clock = PhaseClock()
    for _ in range(2):
        with clock.phase("env"):
            time.sleep(0.01)
    numbers = clock.read(decisions=6, sim_steps=24)
    assert numbers["time/env_seconds"] >= 0.02
    assert numbers["time/env_fraction"] == pytest.approx(
        numbers["time/env_seconds"] / numbers["time/iteration_seconds"]
    )
    assert numbers["time/sim_steps_per_second"] == pytest.approx(4 * numbers["time/decisions_per_second"])
    assert "time/env_seconds" not in clock.read(decisions=0, sim_steps=0)
