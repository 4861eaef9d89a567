"""Slots of other processes: an environment of them resets and keeps its schedule, and cannot step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scripted_simulator import scripted_benchmark

from vla_gym import VLAVectorEnv
from vla_gym.make import slot_setup
from vla_gym.specs import Benchmark
from vla_gym.vector.protocol import EnvConfig
from vla_gym.workers.absent_pool import AbsentPool
from vla_gym.workers.pool import Pool


def absent(benchmark: Benchmark, config: EnvConfig) -> Pool:
    return AbsentPool(slot_setup(benchmark, config).memory)


def test_it_begins_the_episodes_that_others_play(make: Callable[..., VLAVectorEnv]):
    # A simulator that cannot be built is never asked for.
    benchmark = scripted_benchmark(fate="unbuildable")
    envs, played = make(benchmark, 3, seed=4, pool=absent), make(scripted_benchmark(), 3, seed=4)
    obs, infos = envs.reset()
    assert obs["image"].shape == (3, 8, 8, 3)
    assert not obs["image"].any()
    assert infos["task_id"].tolist() == played.reset()[1]["task_id"].tolist()
    envs.load_state_dict(envs.state_dict())
    with pytest.raises(AssertionError, match="stepped elsewhere"):
        envs.step(np.zeros((3, 2)))
