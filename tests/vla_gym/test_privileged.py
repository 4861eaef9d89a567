"""`privileged` reaches the caller whole, and only when asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from gymnasium.spaces import Box
from scripted_simulator import scripted_benchmark

from vla_gym import VLAVectorEnv
from vla_gym.errors import BadValue

KNOWING = replace(scripted_benchmark(), privileged_dim=2)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_it_arrives_in_double_precision(make: Callable[..., VLAVectorEnv], num_workers: int) -> None:
    envs = make(KNOWING, 1, privileged=True, num_workers=num_workers, chunk=2)
    assert envs.single_observation_space["privileged"] == Box(-np.inf, np.inf, (2,), np.float64)
    obs, _ = envs.reset(options={"task_id": 2, "trial_id": 0})
    np.testing.assert_array_equal(obs["privileged"], [[0.0, 12.0]])
    obs, *_ = envs.step(np.zeros((1, 2, 2), dtype=np.float32))
    # Two thirds is no float32: it would come back changed.
    np.testing.assert_array_equal(obs["privileged"], [[2 / 3, 12.0]])
    assert set(make(KNOWING, 1).reset()[0]) == {"image", "state", "instruction"}
    with pytest.raises(BadValue, match="Scripted gives no privileged observation"):
        make(scripted_benchmark(), 1, privileged=True)
