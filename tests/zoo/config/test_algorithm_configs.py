"""The configurations of the algorithms: defaults, ranges, words."""

from __future__ import annotations

import dataclasses

import pytest

from vla_gym.errors import UnknownName
from zoo.config.algorithm_configs import GRPOConfig, PPOConfig, SFTConfig, check_algorithm
from zoo.config.run_config import RunConfig
from zoo.config.settings import annotations_of, check_fields, defaults_of


@pytest.mark.parametrize("config", [PPOConfig, GRPOConfig, SFTConfig])
def test_defaults_are_allowed(config: type) -> None:
    defaults = dict(defaults_of(config))
    assert check_fields(annotations_of(config), defaults, "defaults") == defaults


def test_a_run_s_algorithm_has_the_defaults_of_what_was_not_given() -> None:
    run = RunConfig(algo="ppo", env="e", policy="p", n_timesteps=1, num_envs=1, seed=0)
    assert run.algorithm == PPOConfig()
    given = dataclasses.replace(
        run, algo="grpo", num_envs=2, env_options={"group_size": 2}, algo_kwargs={"batch_size": 8}
    )
    assert given.algorithm == GRPOConfig(batch_size=8)
    with pytest.raises(UnknownName, match="Did you mean 'batch_size'"):
        _ = dataclasses.replace(run, algo_kwargs={"batch_siz": 8}).algorithm


def test_an_unknown_algorithm_is_named() -> None:
    assert check_algorithm("grpo") == "grpo"
    with pytest.raises(UnknownName, match=r"no algorithm 'gppo'\. Known: "):
        check_algorithm("gppo")
