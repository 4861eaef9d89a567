from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from vla_gym.errors import UnknownName
from vla_gym.observation import decode_instruction
from vla_gym.single_env import VLAEnv


def test_an_episode() -> None:
    env = VLAEnv("Toy-Reach", chunk=4, encoding="text")
    obs, info = env.reset(seed=1, options={"task_id": 2, "trial_id": 7})
    assert obs in env.observation_space
    assert obs["instruction"] == "reach the blue block"
    assert (info["task_id"], info["trial_id"], info["executed"]) == (2, 7, 0)
    idle = np.zeros((4, 2), dtype=np.float32)
    for _ in range(2):
        assert env.step(idle)[2:4] == (False, False)
    obs, reward, terminated, truncated, info = env.step(idle)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["executed"] == 4
    assert info["is_success"] is False
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


@pytest.mark.parametrize("encoding", ["bytes", "text"])
def test_the_instruction_is_bytes_unless_text_is_asked_for(encoding: str) -> None:
    env = VLAEnv("Toy-Reach", encoding=encoding)
    for obs, info in (env.reset(options={"task_id": 1, "trial_id": 0}), env.step(np.zeros(2, np.float32))[::4]):
        assert obs in env.observation_space
        assert info["instruction"] == "reach the green block"
        words = obs["instruction"]
        assert (words if encoding == "text" else decode_instruction(words)) == "reach the green block"
    env.close()
    with pytest.raises(UnknownName, match="encoding 'byte'"):
        VLAEnv("Toy-Reach", encoding="byte")


def test_environments_made_alike_begin_different_episodes() -> None:
    def trials(**seed: int) -> list[tuple[int, int]]:
        env = VLAEnv("Toy-Reach", **seed)
        infos = [env.reset()[1] for _ in range(6)]
        env.close()
        return [(info["task_id"], info["trial_id"]) for info in infos]

    # 150 start states: 36 draws alike are no accident.
    assert trials() != trials()
    assert trials(seed=3) == trials(seed=3)
