from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from scripted_simulator import scripted_benchmark

from tests.vla_gym.conftest import trace
from vla_gym import BadValue, VLAVectorEnv

Make = Callable[..., VLAVectorEnv]


@pytest.mark.parametrize(
    ("mode", "num_workers"), [("next_step", 0), ("same_step", 0), ("disabled", 0), ("next_step", 2)]
)
def test_a_loaded_state_continues_bit_for_bit(make: Make, mode: str, num_workers: int) -> None:
    options: dict[str, Any] = {"chunk": 3, "autoreset_mode": mode, "reward": "differenced", "seed": 5}
    envs = make("Toy-Reach", 4, num_workers=num_workers, **options)
    envs.reset()
    trace(envs, 7, seed=1)
    state = json.loads(json.dumps(envs.state_dict()))
    straight = trace(envs, 9, seed=2)
    assert any(entry["actions"] for entry in state["slots"])

    other = make("Toy-Reach", 4, **{**options, "seed": 99})
    other.load_state_dict(state)
    assert trace(other, 9, seed=2) == straight
    envs.load_state_dict(state)  # and back, in the environment that had gone on
    assert trace(envs, 9, seed=2) == straight


def test_states_of_others_are_refused(make: Make) -> None:
    envs = make(None, 3)
    envs.reset()
    state = envs.state_dict()
    with pytest.raises(BadValue, match=r"env_id='Scripted'.*'Toy-Reach'"):
        make("Toy-Reach", 3).load_state_dict(state)
    with pytest.raises(BadValue, match="3 slots, this one 2"):
        make(None, 2).load_state_dict(state)
    with pytest.raises(BadValue, match=r"schedule='random'.*'grid'"):
        make(None, 3, schedule="grid").load_state_dict(state)
    with pytest.raises(BadValue, match="version"):
        envs.load_state_dict({**state, "version": 0})
    with pytest.raises(BadValue, match="group_size=1, this one has 3"):
        make(None, 3, group_size=3).load_state_dict(state)
    del state["group_size"]  # as older versions wrote it
    envs.load_state_dict(state)


def test_another_simulator_is_noticed(make: Make) -> None:
    envs = make(None, 3)
    envs.reset()
    changed = make(scripted_benchmark(stamp="ff"), 3)
    with pytest.raises(BadValue, match=r"began in state ff.*differ"):
        changed.load_state_dict(envs.state_dict())
    assert changed.closed  # its simulators stand elsewhere than its table says
