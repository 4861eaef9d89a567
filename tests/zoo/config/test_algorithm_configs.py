"""The configs and the algorithms' signatures name the same settings, with the same defaults and words."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from typing import Literal, get_origin

import pytest

from vla_gym.errors import UnknownName
from zoo import GRPO, PPO
from zoo.config.algorithm_configs import ALGORITHMS, GRPOConfig, PPOConfig, SFTConfig, check_algorithm
from zoo.config.run_config import RunConfig
from zoo.config.settings import annotations_of, check_fields, defaults_of

# Set by the run itself, or of no use with a VLAPolicy.
NOT_SETTINGS = {
    "self",
    "policy",
    "env",
    "use_sde",
    "sde_sample_freq",
    "rollout_buffer_class",
    "rollout_buffer_kwargs",
    "stats_window_size",
    "tensorboard_log",
    "policy_kwargs",
    "verbose",
    "seed",
    "device",
    "_init_setup_model",
    "process_group",
}


@pytest.mark.parametrize(("config", "cls"), [(PPOConfig, PPO), (GRPOConfig, GRPO)])
def test_defaults_are_the_signatures(config: type, cls: type) -> None:
    parameters = inspect.signature(cls.__init__).parameters
    settings = {name: parameters[name].default for name in parameters if name not in NOT_SETTINGS}
    assert settings == defaults_of(config)


@pytest.mark.parametrize("config", [PPOConfig, GRPOConfig, SFTConfig])
def test_defaults_are_allowed(config: type) -> None:
    defaults = dict(defaults_of(config))
    assert check_fields(annotations_of(config), defaults, "defaults") == defaults


@pytest.mark.parametrize(("config", "cls"), [(PPOConfig, PPO), (GRPOConfig, GRPO)])
def test_words_are_the_signatures(config: type, cls: type) -> None:
    parameters, names = inspect.signature(cls.__init__).parameters, vars(sys.modules[cls.__module__])
    words = {name: hint for name, hint in annotations_of(config).items() if get_origin(hint) is Literal}
    assert len(words) >= 2
    assert words == {name: names[parameters[name].annotation] for name in words}


def test_configs_are_frozen_and_slotted() -> None:
    for config in (*ALGORITHMS.values(), SFTConfig(dataset="demos")):
        assert not hasattr(config, "__dict__") or isinstance(config, type)
    with pytest.raises(dataclasses.FrozenInstanceError):
        PPOConfig().gamma = 0.5  # type: ignore[misc]


def test_a_run_s_algorithm_has_the_defaults_of_what_was_not_given() -> None:
    run = RunConfig(algo="ppo", env="e", policy="p", n_timesteps=1, num_envs=1, seed=0)
    assert run.algorithm == PPOConfig()
    given = dataclasses.replace(run, algo="grpo", algo_kwargs={"batch_size": 8})
    assert given.algorithm == GRPOConfig(batch_size=8)
    with pytest.raises(UnknownName, match="Did you mean 'batch_size'"):
        _ = dataclasses.replace(run, algo_kwargs={"batch_siz": 8}).algorithm


def test_an_unknown_algorithm_is_named() -> None:
    assert check_algorithm("grpo") == "grpo"
    with pytest.raises(UnknownName, match=r"no algorithm 'gppo'\. Known: grpo, ppo"):
        check_algorithm("gppo")
