from __future__ import annotations

import inspect
from typing import Any, get_args

import pytest

from vla_gym import make_vec
from vla_gym.errors import UnknownName
from vla_gym.rewards import RewardKind
from vla_gym.workers.pool import OnWorkerError
from vla_policies import VLAPolicy
from vla_policies.actions.sampling import Greedy
from zoo import GRPO, PPO
from zoo.algorithms.losses import ValueClip
from zoo.algorithms.reference_policy import KLReference
from zoo.config.settings import (
    _ALIASES,
    ALGORITHM_SETTINGS,
    ENV_SETTINGS,
    POLICY_SETTINGS,
    Kind,
    check_settings,
    known_settings,
)
from zoo.rollout.log_prob_levels import CreditLevel, LogprobLevel

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
    "privileged",  # for scripted experts: no policy is trained on it
    "pool",  # --placement
    "pipeline_stages",  # --pipeline-stages: what it costs and brings depends on the machine
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


@pytest.mark.parametrize(
    ("algo", "values", "meant"),
    [
        ("ppo", {"lr": 3}, "learning_rate"),
        ("ppo", {"n_envs": 3}, "num_envs"),
        ("ppo", {"lambda": 0.9}, "gae_lambda"),
        ("ppo", {"policy_kwargs": {"critic_lr": 3}}, "value_lr"),
        ("grpo", {"num_generations": 3}, "group_size"),
    ],
)
def test_what_others_call_a_setting_is_understood_as_a_hint(
    algo: str, values: dict[str, Any], meant: str
) -> None:
    with pytest.raises(UnknownName, match=f"Did you mean '{meant}'\\?$"):
        check_settings(algo, values, "x")


def test_a_hint_is_a_setting_of_the_algorithm() -> None:
    with pytest.raises(UnknownName) as caught:
        check_settings("grpo", {"lambda": 0.9}, "x")
    assert "gae_lambda" not in str(caught.value)
    every = {*POLICY_SETTINGS, *known_settings("ppo"), *known_settings("grpo")}
    assert set(_ALIASES.values()) <= every
    assert not set(_ALIASES) & every


def test_null_is_for_optional_settings_only() -> None:
    assert check_settings("ppo", {"target_kl": None}, "x") == {"target_kl": None}
    with pytest.raises(ValueError, match="must be a number, got None"):
        check_settings("ppo", {"gamma": None}, "x")


def test_the_table_is_the_policys_signature() -> None:
    decided = {
        "self",
        "observation_space",
        "action_space",
        "lr_schedule",
        "backbone",
        "action_spec",
        "suite",
    }
    of_no_use = {"use_sde", "normalize_images", "optimizer_class"}
    parameters = set(inspect.signature(VLAPolicy.__init__).parameters)
    assert set(POLICY_SETTINGS) == parameters - decided - of_no_use


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (POLICY_SETTINGS["greedy"], Greedy),
        (ENV_SETTINGS["reward"], RewardKind),
        (ENV_SETTINGS["on_worker_error"], OnWorkerError),
        (ALGORITHM_SETTINGS["grpo"]["logprob_level"], LogprobLevel),
        (ALGORITHM_SETTINGS["grpo"]["kl_reference"], KLReference),
        (ALGORITHM_SETTINGS["ppo"]["value_clip"], ValueClip),
        (ALGORITHM_SETTINGS["ppo"]["reward_level"], CreditLevel),
        (ALGORITHM_SETTINGS["ppo"]["value_level"], CreditLevel),
    ],
)
def test_the_words_there_are_are_those_of_what_takes_them(kind: Kind, words: Any) -> None:
    assert kind.choices == get_args(words)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gamma", 1.5, "at most 1"),
        ("gae_lambda", -0.1, "at least 0"),
        ("max_grad_norm", 0, "above 0"),
        ("n_steps", 0, "at least 1"),
        ("learning_rate", -1e-3, "at least 0"),
        ("learning_rate", {"schedule": "linear", "start": -1}, "learning_rate.start must be at least 0"),
        ("learning_rate", {"schedule": "linaer", "start": 1}, "Did you mean 'linear'"),
        ("learning_rate", {"schedule": "linear"}, "needs 'start'"),
        ("policy_kwargs", {"temperatur": 1}, "Did you mean 'temperature'"),
        ("policy_kwargs", {"greedy": "meen"}, "no choice .*greedy.* 'meen'. Known: likeliest, mean.*'mean'"),
        ("on_worker_error", "foo", "Known: raise, restart"),
        ("value_level", "step", "Known: action, chunk"),
        ("image_size", 1_000_000, "at most 2048"),
        ("policy_kwargs", {"temperature": "hot"}, "must be a number"),
        ("policy_kwargs", {"backbone_kwargs": "tiny"}, "must be a mapping"),
        ("policy_kwargs", {"optimizer_kwargs": {"beta": [0.9, 0.99]}}, "Did you mean 'betas'"),
        ("policy_kwargs", {"optimizer_kwargs": {"betas": [0.9, 2]}}, "at most 1"),
    ],
)
def test_a_value_out_of_range_is_named(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_settings("ppo", {name: value}, "x")
