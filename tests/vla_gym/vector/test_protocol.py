from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Callable

import pytest
from scripted_simulator import scripted_benchmark

from vla_gym import VLAVectorEnv
from vla_gym.vector.protocol import renderer


def test_protocol_is_json_and_complete(make: Callable[..., VLAVectorEnv]) -> None:
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
