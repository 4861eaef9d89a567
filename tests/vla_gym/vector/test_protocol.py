from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Callable

import numpy as np
import pytest
from scripted_simulator import scripted_benchmark

from vla_gym import VLAVectorEnv
from vla_gym.vector.protocol import renderer

Make = Callable[..., VLAVectorEnv]


def test_protocol_is_json_and_complete(make: Make) -> None:
    record = make("Toy-Reach", 2, chunk=3, schedule="grid", reward="differenced").protocol()
    assert json.loads(json.dumps(record)) == record
    assert record["env_id"] == "Toy-Reach"
    assert record["tasks"][1] == {
        "task_id": 1,
        "name": "reach_green",
        "instruction": "reach the green block",
        "horizon": 12,
        "num_trials": 50,
        "suite": "toy_reach",
    }
    assert (record["chunk"], record["schedule"], record["image_size"]) == (3, "grid", 32)
    assert record["reward"] == {"kind": "differenced", "scale": 1.0}
    assert record["renderer"] == {"name": "numpy"}
    assert record["versions"]["python"] == platform.python_version()


def test_mujoco_s_renderer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    benchmark = dataclasses.replace(scripted_benchmark(), requires=("mujoco",))
    assert renderer(benchmark)["MUJOCO_GL"] == "osmesa"


def test_the_policy_is_told_the_new_words_and_the_protocol_the_old_ones(make: Make) -> None:
    words = {"reach_red": "touch the block as red as a tomato"}
    envs = make("Toy-Reach", 2, schedule="grid", instructions=words)
    plain = make("Toy-Reach", 2, schedule="grid")
    obs, infos = envs.reset()
    plain_obs, plain_infos = plain.reset()
    # Two slots of a grid of 3 x 50 cells begin at cells 0 and 75: tasks 0 and 1.
    assert obs["instruction"] == (words["reach_red"], "reach the green block")
    assert plain_obs["instruction"] == ("reach the red block", "reach the green block")
    assert infos["start_state"].tolist() == plain_infos["start_state"].tolist()
    np.testing.assert_array_equal(obs["image"], plain_obs["image"])
    record = envs.protocol()
    assert json.loads(json.dumps(record)) == record
    assert record["tasks"][0]["instruction"] == words["reach_red"]
    assert record["own_instructions"] == {"reach_red": "reach the red block"}
    assert plain.protocol()["own_instructions"] == {}
