"""Start states by learnability: rates, probabilities and counts worked out by hand; what PPO and GRPO make of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.zoo.training.test_checkpoint import build
from vla_gym.errors import BadValue
from zoo.algorithms.start_sampling import StartSampler, start_probabilities, success_rates
from zoo.evaluation.evaluator import EpisodeRecord

ignore_alarms = pytest.mark.filterwarnings("ignore::zoo.algorithms.update_metrics.TrainingWarning")


def episode(task_id: int, trial_id: int, *, solved: bool) -> EpisodeRecord:
    return EpisodeRecord(
        task_id=task_id, trial_id=trial_id, success_once=solved, success_at_end=solved, total_reward=0.0, length=1
    )


def test_a_start_state_is_judged_by_its_episodes_and_those_of_its_task():
    # Task 0: 3 of 4 solved, (3 + 1) / (4 + 2) = 2/3. Start 0: (3 + 4/3) / (4 + 2) = 13/18; start 1 was not played.
    # Task 1: none played, 1/2. Task 2: 0 of 6, 1/8; start 3: (0 + 1/4) / (6 + 2) = 1/32.
    rate_P = success_rates(np.array([3.0, 0, 0, 0]), np.array([4.0, 0, 0, 6]), np.array([0, 0, 1, 2]))
    assert rate_P == pytest.approx([13 / 18, 2 / 3, 1 / 2, 1 / 32])


def test_probabilities_follow_p_times_one_minus_p_above_a_uniform_share():
    # p (1 - p) = 0.25, 0.16, 0.09: of a sum of 0.5.
    rate_P = np.array([0.5, 0.2, 0.9])
    assert start_probabilities(rate_P, 0.0) == pytest.approx([0.5, 0.32, 0.18])
    assert start_probabilities(rate_P, 0.4) == pytest.approx([0.3 + 0.4 / 3, 0.192 + 0.4 / 3, 0.108 + 0.4 / 3])
    assert start_probabilities(rate_P, 1.0) == pytest.approx([1 / 3] * 3)
    # What seems hopeless and what seems done keep the uniform share.
    assert start_probabilities(np.array([1e-9, 0.5, 1 - 1e-9]), 0.3).min() == pytest.approx(0.1)


def test_counts_forget():
    sampler = StartSampler([1, 2], uniform=0.0, memory=2)
    assert sampler.probabilities() == pytest.approx([1 / 3] * 3), "nothing is known"
    sampler.count([episode(0, 0, solved=True), episode(0, 0, solved=False), episode(1, 1, solved=True)])
    assert sampler.to_json() == {"episodes": [2.0, 0.0, 1.0], "successes": [1.0, 0.0, 1.0]}
    sampler.count([episode(1, 0, solved=False)])
    keep = math.exp(-1 / 2)
    assert sampler.to_json()["episodes"] == pytest.approx([2 * keep, 1.0, keep])
    assert sampler.to_json()["successes"] == pytest.approx([keep, 0.0, keep])
    for _ in range(100):
        sampler.count([])
    assert sampler.probabilities() == pytest.approx([1 / 3] * 3), "everything is forgotten"


def test_numbers_of_a_rollout():
    sampler = StartSampler([1, 1], uniform=0.0, memory=10**9)
    assert sampler.metrics([]) == pytest.approx({"rollout/effective_starts": 2, "rollout/effective_tasks": 2})
    sampler.count([episode(1, 0, solved=True)] * 6)
    # Task 1: 7/8, its start state (6 + 7/4) / 8 = 31/32; weights 1/4 and 31/1024, so probabilities 256/287 and 31/287.
    first, second = 256 / 287, 31 / 287
    assert sampler.probabilities() == pytest.approx([first, second])
    values = sampler.metrics([episode(0, 0, solved=False), episode(1, 0, solved=True)])
    assert values["rollout/success_uniform"] == pytest.approx(first)
    assert values["rollout/effective_tasks"] == values["rollout/effective_starts"]
    assert math.log(values["rollout/effective_tasks"]) == pytest.approx(
        -first * math.log(first) - second * math.log(second)
    )


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"episodes": [1.0, 1.0]},
        {"episodes": [1.0], "successes": [1.0]},
        {"episodes": [1.0, 1.0], "successes": [2.0, 0.0]},
        {"episodes": [1.0, math.nan], "successes": [0.0, 0.0]},
        {"episodes": [1.0, 1.0], "successes": [-1.0, 0.0]},
        {"episodes": "ab", "successes": [0.0, 0.0]},
        {"episodes": [[1.0], 1.0], "successes": [0.0, 0.0]},
    ],
)
def test_what_can_be_no_counts_is_refused(state: Any):
    with pytest.raises(BadValue, match="starts"):
        StartSampler([1, 1], uniform=0.1, memory=3).restore(state)


@ignore_alarms
@pytest.mark.parametrize("algo", ["ppo", "grpo"])
def test_the_environment_draws_what_the_counts_say(monkeypatch: pytest.MonkeyPatch, algo: str):
    model = build(algo, start_sampling="learnability")
    sampler = model.start_sampler
    # All but the last start state, of task 2 and trial 49, seem hopeless.
    sampler.restore({"episodes": [1e12] * 150, "successes": [0.0] * 149 + [5e11]})
    drawn = set()

    def note(local: Any, _: Any) -> bool:
        drawn.update((info["task_id"], info["trial_id"]) for info in local["infos"] if info)
        return True

    monkeypatch.setattr(sampler, "_uniform", 0.0)
    model.learn(200, callback=note)
    assert model._updates_done >= 2
    assert drawn == {(2, 49)}
