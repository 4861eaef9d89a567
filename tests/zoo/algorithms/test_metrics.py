"""Logged numbers by hand."""

from __future__ import annotations

import time

import pytest
import torch

from zoo.algorithms.metrics import PhaseClock, advantage_range, episode_metrics, learning_rates, rank_means
from zoo.distributed.process_group import ProcessGroup
from zoo.evaluation.evaluator import EpisodeRecord


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


def test_learning_rates_of_named_groups():
    a, b = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    groups = [{"params": [a], "name": "backbone"}, {"params": [b], "name": "value_head", "lr_scale": 10.0}]
    assert learning_rates(torch.optim.SGD(groups, lr=0.1)) == {"train/actor/lr": 0.1, "train/critic/lr": 1.0}
    assert learning_rates(torch.optim.SGD([a], lr=0.1)) == {"train/actor/lr": 0.1, "train/critic/lr": 0.1}


def test_means_and_ranges_leave_out_what_has_no_entry():
    values = {"some": torch.tensor([[1.0, 2.0], [3.0, 6.0]]), "none": torch.zeros(0)}
    assert rank_means(values, ProcessGroup()) == {"some": 3.0}
    assert advantage_range(torch.tensor([-1.0, 3.0]), ProcessGroup()) == {
        "rollout/advantages_max": 3.0,
        "rollout/advantages_min": -1.0,
    }
    assert advantage_range(torch.zeros(0), ProcessGroup()) == {}
