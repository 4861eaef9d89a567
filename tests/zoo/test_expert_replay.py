"""A replayed expert is compared with its measured rate; on Toy-Reach an expert with a wrong sign is found out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vla_gym import find_benchmark
from vla_gym.adapters.toy import STEP, ToyReach
from vla_gym.specs import Task
from zoo import diagnostics, experts
from zoo.diagnostics import ReplayResult, expert_success_rate, replay, summarize
from zoo.doctor import run
from zoo.evaluation.statistics import Rate

TOY = find_benchmark("Toy-Reach")


def result(successes: int, episodes: int, known: Rate | None) -> ReplayResult:
    rate = Rate(label="all", successes=successes, episodes=episodes)
    return ReplayResult(tasks=(rate,), known=known)


def test_below_means_that_the_intervals_lie_apart() -> None:
    known = Rate(label="known", successes=50, episodes=50)  # from 92.9 %
    assert result(7, 10, known).below  # up to 89.2 %
    assert not result(8, 10, known).below  # up to 94.3 %


def test_with_nothing_known_only_total_failure_tells() -> None:
    assert result(0, 3, None).below
    assert not result(1, 3, None).below
    assert "nothing to compare with" in str(result(1, 3, None))


def meta_world(name: str, horizon: int) -> Task:
    return Task(name=name, instruction="do it", horizon=horizon, num_trials=50, suite="easy")


def rate_of(*tasks: Task) -> tuple[int, int] | None:
    rate = expert_success_rate(tasks)
    return None if rate is None else (rate.successes, rate.episodes)


def test_known_rates_add_up_over_tasks_and_fit_the_horizon() -> None:
    reach, peg = meta_world("reach", 160), meta_world("peg-insert-side", 160)
    assert rate_of(reach, peg) == (100, 100)
    assert expert_success_rate([replace(peg, horizon=80)]) is None
    assert expert_success_rate([reach, meta_world("assembly", 160)]) is None


def test_liberos_rates_are_those_of_a_suite_and_not_of_its_changed_forms() -> None:
    tomato = Task(
        name="pick_up_the_tomato_sauce_and_place_it_in_the_basket",
        instruction="pick it up",
        horizon=280,
        num_trials=50,
        suite="libero_object",
    )
    assert rate_of(tomato, meta_world("reach", 100)) == (70, 70)
    assert expert_success_rate([replace(tomato, suite="libero_object_swap")]) is None
    assert expert_success_rate([replace(tomato, name="pick_up_the_anvil_and_place_it_in_the_basket")]) is None


def test_counts_per_task() -> None:
    summary = summarize(TOY.tasks, [(0, True), (2, True), (0, False)])
    assert [(rate.label, rate.successes, rate.episodes) for rate in summary.tasks] == [
        ("reach_red", 1, 2),
        ("reach_blue", 1, 1),
    ]
    assert (summary.overall.successes, summary.overall.episodes) == (2, 3)


class ToyExpert:
    """Straight to the block."""

    sign = 1.0

    def __init__(self, task: Task) -> None:
        pass

    def action(self, privileged_P: np.ndarray) -> np.ndarray:
        return np.clip(self.sign * privileged_P / STEP, -1, 1).astype(np.float32)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    def privileged(self: ToyReach) -> np.ndarray:
        return np.subtract(self._blocks[self._target], (self._x, self._y))

    monkeypatch.setattr(ToyReach, "privileged", privileged, raising=False)
    monkeypatch.setitem(experts.EXPERTS, TOY.simulator, f"{__name__}:ToyExpert")
    monkeypatch.setattr(
        diagnostics, "find_benchmark", lambda env_id, **options: replace(TOY, privileged_dim=2, **options)
    )


@pytest.mark.usefixtures("toy")
def test_an_expert_solves_its_tasks_through_our_environment(capsys: pytest.CaptureFixture[str]) -> None:
    summary = replay("Toy-Reach", 7)
    assert (summary.overall.successes, summary.overall.episodes) == (7, 7)
    assert run(["--oracle", "--env", "Toy-Reach", "--episodes", "3"]) == 0
    assert "100.0%  [ 43.9%, 100.0%]      3/3    all episodes" in capsys.readouterr().out


@pytest.mark.usefixtures("toy")
def test_actions_that_mean_something_else_are_found_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ToyExpert, "sign", -1.0)
    assert run(["--oracle", "--env", "Toy-Reach"]) == 1
    assert "scale, gripper sign, frame" in capsys.readouterr().out
