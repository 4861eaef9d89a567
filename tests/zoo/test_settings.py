from __future__ import annotations

import inspect

import pytest

from vla_gym import make_vec
from zoo import GRPO, PPO
from zoo.settings import ALGORITHM_SETTINGS, ENV_SETTINGS, check_settings

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
}
# `make_vec` arguments that a run decides, not a hyperparameter file.
NOT_ENV_SETTINGS = {
    "env_id",
    "num_envs",
    "schedule",
    "seed",
    "autoreset_mode",
    "group_offset",
    "num_groups",
    "render_mode",
    "family_options",
    "on_worker_error",
    "step_timeout",
    "reset_timeout",
}


@pytest.mark.parametrize(("algo", "cls"), [("ppo", PPO), ("grpo", GRPO)])
def test_the_table_is_the_algorithms_signature(algo: str, cls: type) -> None:
    parameters = set(inspect.signature(cls.__init__).parameters) - NOT_SETTINGS
    assert set(ALGORITHM_SETTINGS[algo]) == parameters


def test_the_table_is_make_vecs_signature() -> None:
    parameters = set(inspect.signature(make_vec).parameters) - NOT_ENV_SETTINGS
    assert set(ENV_SETTINGS) - {"env_kwargs"} == parameters


def test_a_pair_is_two_numbers() -> None:
    assert check_settings("grpo", {"score_bounds": [0.1, "9e-1"]}, "x") == {"score_bounds": [0.1, 0.9]}
    with pytest.raises(ValueError, match="two numbers"):
        check_settings("grpo", {"score_bounds": 0.1}, "x")


def test_null_is_for_optional_settings_only() -> None:
    assert check_settings("ppo", {"target_kl": None}, "x") == {"target_kl": None}
    with pytest.raises(ValueError, match="must be a number, got None"):
        check_settings("ppo", {"gamma": None}, "x")
