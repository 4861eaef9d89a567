"""The table of experts."""

from __future__ import annotations

import pytest

from vla_gym import find_benchmark
from vla_gym.errors import BadValue
from zoo.experts.base import expert_class


@pytest.mark.parametrize("env_id", ["Toy-Reach", "ManiSkill/PokeCube"])
def test_a_benchmark_without_an_expert_says_so(env_id: str) -> None:
    with pytest.raises(BadValue, match=f"{env_id} has no scripted expert"):
        expert_class(find_benchmark(env_id))
