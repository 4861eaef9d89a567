"""`scripted_simulator` must be importable here and in worker processes, which inherit `sys.path`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from scripted_simulator import scripted_benchmark

from vla_gym import VLAVectorEnv, make_vec
from vla_gym.specs import Benchmark


def trace(envs: VLAVectorEnv, decisions: int, seed: int = 0) -> list[Any]:
    """Everything that so many random decisions give, so that `==` compares it."""
    rng, seen = np.random.default_rng(seed), list[Any]()
    shape = (envs.num_envs, *envs.single_action_space.shape)
    for _ in range(decisions):
        obs, reward, terminated, truncated, infos = envs.step(rng.uniform(-1, 1, shape))
        seen += [value.tobytes() if isinstance(value, np.ndarray) else value for value in obs.values()]
        seen += [reward.tolist(), terminated.tolist(), truncated.tolist()]
        keys = ("task_id", "trial_id", "start_state", "executed", "success", "step_rewards")
        seen += [infos[key].tolist() for key in keys]
        if "episode" in infos:
            seen += [infos["episode"][key].tolist() for key in ("return", "length", "success_once")]
    return seen


@pytest.fixture
def make() -> Iterator[Callable[..., VLAVectorEnv]]:
    """`make(benchmark or id, num_envs, **options)`, closed at the test's end; the scripted one by default."""
    made: list[VLAVectorEnv] = []

    def build(env: str | Benchmark | None = None, num_envs: int = 3, **options: Any) -> VLAVectorEnv:
        envs = make_vec(scripted_benchmark() if env is None else env, num_envs, **options)
        made.append(envs)
        return envs

    yield build
    for envs in made:
        envs.close()


@pytest.fixture
def alive() -> Callable[[int], bool]:
    """Whether there is a process of this id."""

    def look(pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    return look
