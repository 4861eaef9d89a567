"""Measured success of experts."""

from __future__ import annotations

import pytest

from vla_gym import find_benchmark
from zoo.diagnostics.expert_success_rates import expert_success_rate


@pytest.mark.parametrize(
    ("env_id", "solved", "episodes"),
    [("ManiSkill/StackCube", 49, 50), ("MetaWorld/door-open", 50, 50), ("MetaWorld-MT10", 500, 500)],
)
def test_known_tasks_together(env_id: str, solved: int, episodes: int) -> None:
    rate = expert_success_rate(find_benchmark(env_id).tasks)
    assert rate is not None
    assert (rate.successes, rate.episodes) == (solved, episodes)


@pytest.mark.parametrize("env_id", ["ManiSkill/PokeCube", "MetaWorld/assembly", "Toy-Reach"])
def test_of_others_nothing_is_known(env_id: str) -> None:
    assert expert_success_rate(find_benchmark(env_id).tasks) is None
