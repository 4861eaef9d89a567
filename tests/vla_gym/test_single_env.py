from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from vla_gym.single_env import VLAEnv


def test_an_episode() -> None:
    env = VLAEnv("Toy-Reach", chunk=4)
    obs, info = env.reset(seed=1, options={"task_id": 2, "trial_id": 7})
    assert obs in env.observation_space
    assert obs["instruction"] == "reach the blue block"
    assert (info["task_id"], info["trial_id"], info["executed"]) == (2, 7, 0)
    idle = np.zeros((4, 2), dtype=np.float32)
    for _ in range(2):
        assert env.step(idle)[2:4] == (False, False)
    obs, reward, terminated, truncated, info = env.step(idle)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["episode"]["length"] == 12
    with pytest.raises(gym.error.ResetNeeded):
        env.step(idle)
    assert env.render() is None
    env.close()
    env.close()


def test_a_grid_is_walked_and_begins_again() -> None:
    env = VLAEnv("Toy-Reach/0", chunk=12, schedule="grid")
    starts = [env.reset()[1]["trial_id"] for _ in range(52)]
    assert starts == [*range(50), 0, 1]
    assert env.reset(seed=0)[1]["trial_id"] == 0
    env.close()
