"""A run's options are those of what takes them; its numbers fit each other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.zoo.stand_ins import toy_config
from vla_gym.errors import BadValue, UnknownName
from zoo.config.run_config import benchmark_options, build_config, check_settings, env_options, from_plain, to_plain

WHOLE = to_plain(toy_config(n_timesteps=9, num_envs=2))


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
        (
            {"n_timesteps": 1, "num_envs": 1, "algo_kwargs": {"batch_size": 1}},
            BadValue,
            "normalize_advantage needs at least 2.*batch_size=1",
        ),
        ({"algo": "../../../evil"}, UnknownName, "no algorithm"),
        ({"env": "../../evil"}, BadValue, "env must be an environment id"),
        ({"policy": None}, BadValue, "policy must be a word, got None"),
        ({"device": "tpu"}, BadValue, "device must be one of auto, cpu, cuda"),
        ({"seed": -1}, BadValue, r"^config.yml: seed must be at least 0, got -1"),
        ({"algo_kwargs": {"huber_delta": 0.0}}, BadValue, "huber_delta must be above 0"),
        ({"env_options": {"chunk": 999999999999}}, BadValue, "chunk must be at most 10000"),
        ({"env_options": []}, BadValue, "env_options must be a mapping"),
        ({"algo": "sft", "algo_kwargs": {"dataset": 5}}, BadValue, "dataset must be text or a list"),
    ],
)
def test_a_damaged_record_is_one_line(values: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        from_plain({**WHOLE, **values}, "config.yml")


@pytest.mark.parametrize(
    ("algo", "settings", "says"),
    [
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
