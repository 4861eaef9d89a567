"""A run's options are those of what takes them; its numbers fit each other."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any, get_args

import pytest

from tests.zoo.stand_ins import toy_config
from vla_gym import make_vec
from vla_gym.errors import BadValue, UnknownName
from vla_policies import VLAPolicy
from vla_policies.actions.sampling import Greedy
from zoo.config.run_config import (
    ENV_OPTIONS,
    PolicyOptions,
    benchmark_options,
    build_config,
    check_settings,
    env_options,
    from_plain,
    to_plain,
)
from zoo.config.settings import annotations_of

# `make_vec` arguments that a run decides, not a hyperparameter file.
NOT_ENV_OPTIONS = {
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
    "draw_every",  # likewise
    "pool",  # --placement
    "pipeline_stages",  # --pipeline-stages: what it costs and brings depends on the machine
}
# `VLAPolicy` arguments that a run decides, and those of no use to it.
NOT_POLICY_OPTIONS = {
    *("self", "observation_space", "action_space", "lr_schedule", "backbone", "action_spec", "suite"),
    *("use_sde", "normalize_images", "optimizer_class"),
}
WHOLE = to_plain(toy_config(n_timesteps=9, num_envs=2))


def test_options_of_the_environment_are_make_vecs() -> None:
    parameters = set(inspect.signature(make_vec).parameters) - NOT_ENV_OPTIONS
    assert set(ENV_OPTIONS) - {"env_kwargs"} == parameters


def test_options_of_the_policy_are_its_signature() -> None:
    parameters = set(inspect.signature(VLAPolicy.__init__).parameters) - NOT_POLICY_OPTIONS
    assert set(annotations_of(PolicyOptions)) == parameters
    assert get_args(annotations_of(PolicyOptions)["greedy"]) == get_args(Greedy)


def test_settings_are_sorted_to_what_takes_them() -> None:
    values = {
        "n_timesteps": 100,
        "num_envs": 4,
        "chunk": 8,
        "env_kwargs": {"protocol": "rlinf"},
        "split": "test",
        "gamma": 0.9,
        "policy_kwargs": {"top_k": 3},
    }
    config = build_config(algo="ppo", env="e", policy="p", values=values, seed=1, device="cpu")
    assert config.env_options == {"chunk": 8, "split": "test", "protocol": "rlinf"}
    assert benchmark_options(config.env_options) == {"split": "test", "protocol": "rlinf"}
    assert (config.algo_kwargs, config.policy_kwargs) == ({"gamma": 0.9}, {"top_k": 3})
    assert (config.eval_episodes, config.save_freq, config.device) == (20, 25, "cpu")
    assert env_options(values, without=("chunk",)) == {"split": "test", "protocol": "rlinf"}
    assert from_plain(to_plain(config), "config.yml") == config


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ({"n_timesteps": 1, "num_envs": 0}, BadValue, "num_envs must be at least 1, got 0"),
        ({"n_timesteps": 1, "num_envs": 1, "num_env": 1}, UnknownName, "Did you mean 'num_envs'"),
        (
            {"n_timesteps": 1, "num_envs": 1, "algo_kwargs": {"batch_size": 1}},
            BadValue,
            "normalize_advantage needs at least 2.*batch_size=1",
        ),
        ({"algo": "../../../evil"}, UnknownName, "no algorithm"),
        ({"algo": ["ppo"]}, BadValue, "algo must be a word"),
        ({"env": "../../evil"}, BadValue, "env must be an environment id"),
        ({"policy": None}, BadValue, "policy must be a word, got None"),
        ({"device": "tpu"}, BadValue, "device must be one of auto, cpu, cuda"),
        ({"seed": -1}, BadValue, "seed must be"),
        ({"algo_kwargs": {"huber_delta": 0.0}}, BadValue, "huber_delta must be above 0"),
        ({"algo_kwargs": {"clip_range": None}}, BadValue, "clip_range must be a number"),
        ({"env_options": {"chunk": 999999999999}}, BadValue, "chunk must be at most 10000"),
        ({"env_options": []}, BadValue, "env_options must be a mapping"),
        ({"pipeline_stages": [2]}, BadValue, "pipeline_stages must be a number"),
        ({"algo": "sft", "algo_kwargs": {"dataset": 5}}, BadValue, "dataset must be text or a list"),
    ],
)
def test_a_damaged_record_is_one_line(values: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        from_plain({**WHOLE, **values}, "config.yml")


@pytest.mark.parametrize(
    ("algo", "settings", "says"),
    [
        ("grpo", {"group_size": 4, "loss_weight": "token", "masked_minibatches": True}, "leave one of the two out"),
        ("grpo", {"group_size": 4, "score_bounds": [0.9, 0.1]}, r"low below high, got \(0.9, 0.1\)"),
        ("grpo", {"group_size": 1}, "group_size must be at least 2, got 1"),
        ("ppo", {"critic_warmup_updates": 2, "vf_coef": 0}, "needs vf_coef > 0, got 2 and vf_coef 0"),
        ("ppo", {"critic_epochs": 1, "vf_coef": 0}, "needs vf_coef > 0, got 1 and vf_coef 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(algo: str, settings: dict[str, Any], says: str) -> None:
    values = {"n_timesteps": 100, "num_envs": 8, **settings}
    with pytest.raises(BadValue, match=says):
        build_config(algo=algo, env="e", policy="p", values=values, seed=1)


@pytest.mark.parametrize("name", ["env_kwargs", "eval_env_kwargs"])
def test_settings_of_the_environment_are_checked_among_those_of_its_family(name: str) -> None:
    assert check_settings("ppo", {name: {"chunk": 1e1, "protocol": "x"}}, "-params") == {
        name: {"chunk": 10, "protocol": "x"}
    }
    with pytest.raises(BadValue, match=rf"-params: {name}: image_size must be a number, got 'large'"):
        check_settings("ppo", {name: {"image_size": "large"}}, "-params")


def test_a_record_of_the_first_version_evaluated_all_tasks() -> None:
    first = {key: value for key, value in WHOLE.items() if key != "eval_tasks"}
    assert from_plain(first, "config.yml") == from_plain({**WHOLE, "eval_tasks": []}, "config.yml")


@pytest.mark.parametrize(
    "name",
    [name for name in WHOLE if name not in ("eval_tasks", "eval_options", "env_wrapper", "callback", "rank_timeout")],
)
def test_a_record_without_a_field_is_no_run_with_its_default(name: str) -> None:
    values = {key: value for key, value in WHOLE.items() if key != name}
    with pytest.raises(BadValue, match=f"config.yml lacks {name}, which every run writes"):
        from_plain(values, "config.yml")


def test_an_arithmetic_mistake_of_a_record_names_the_file() -> None:
    with pytest.raises(BadValue, match=r"^run/config.yml: seed must be at least 0, got -1"):
        from_plain({**WHOLE, "seed": -1}, "run/config.yml")


def test_a_record_that_fits_has_its_values() -> None:
    config = from_plain({**WHOLE, "algo_kwargs": {"gamma": 1}}, "config.yml")
    assert config == replace(from_plain(WHOLE, "config.yml"), algo_kwargs={"gamma": 1.0})
