from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from scripted_simulator import scripted_benchmark

from vla_gym import VLAVectorEnv, find_benchmark, make_vec
from vla_gym.errors import BadValue, MissingDependency, UnknownName, VLAZooError

Make = Callable[..., VLAVectorEnv]


def test_a_reward_is_not_differenced_twice(make: Make) -> None:
    with pytest.raises(BadValue, match=r"Scripted pays the change of its reward.*'step_penalty', got 'diff"):
        make(dataclasses.replace(scripted_benchmark(), pays_differences=True), reward="differenced")
    assert find_benchmark("ManiSkill-Plate25").pays_differences


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_envs": 0}, BadValue, "num_envs must be an integer >= 1, got 0"),
        ({"chunk": 0}, BadValue, "chunk"),
        ({"num_envs": 6, "group_size": 4}, BadValue, "num_envs=6 is not a multiple of group_size=4"),
        ({"image_size": 4}, BadValue, r"image_size must be an integer in 8 \.\. 2048"),
        ({"step_timeout": 0}, BadValue, "step_timeout"),
        ({"reward_scale": 0}, BadValue, "reward_scale"),
        ({"reward": "dense"}, UnknownName, "no reward 'dense'"),
        ({"schedule": "girds"}, UnknownName, "Did you mean 'grid'"),
        ({"autoreset_mode": "nextstep"}, UnknownName, "Did you mean 'next_step'"),
        ({"on_worker_error": "resart"}, UnknownName, "Did you mean 'restart'"),
        ({"render_mode": "human"}, UnknownName, "rgb_array"),
        ({"split": 3}, UnknownName, "no split .*'3'"),
        ({"autoreset_mode": ["disabled"]}, UnknownName, "no autoreset mode"),
        ({"reset_timeout": 1e300}, BadValue, "reset_timeout must be .* at most 1e\\+06, got 1e\\+300"),
        ({"reward_scale": "1"}, BadValue, "reward_scale must be a number > 0, .* got '1'"),
        ({"protocl": "x"}, UnknownName, "no option of Toy-Reach 'protocl'"),
        ({"n_envs": 4}, UnknownName, "no option of Toy-Reach 'n_envs'. Did you mean 'num_envs'"),
    ],
)
def test_mistakes_are_one_line(options: dict[str, Any], error: type[VLAZooError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        make_vec("Toy-Reach", **options)
    assert "\n" not in str(caught.value)


def test_a_benchmark_of_one_s_own() -> None:
    with pytest.raises(BadValue, match="takes no protocol"):
        make_vec(scripted_benchmark(), protocol="x")
    only_main = dataclasses.replace(scripted_benchmark(), cameras=("image",))
    with pytest.raises(BadValue, match="has no wrist camera"):
        make_vec(only_main, wrist_camera=True)
    silent = dataclasses.replace(only_main.tasks[0], instruction="")
    with pytest.raises(BadValue, match="instruction ''"):
        make_vec(dataclasses.replace(only_main, tasks=(silent,)))
    missing = dataclasses.replace(only_main, requires=("no_such_simulator",), extra="libero")
    with pytest.raises(MissingDependency, match="vla-zoo"):
        make_vec(missing)
