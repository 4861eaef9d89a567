from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import vla_gym
from vla_gym import VLAVectorEnv


@pytest.mark.parametrize("env_id", vla_gym.list_envs())
def test_every_id_is_registered(env_id: str) -> None:
    spec = gym.spec(vla_gym.gymnasium_id(env_id))
    assert spec.id == f"vla_gym/{env_id.replace('/', '.')}-v0"
    assert spec.kwargs == {"env_id": env_id}
    assert spec.vector_entry_point == "vla_gym.make:make_vec"


def test_make_vec() -> None:
    envs = gym.make_vec("vla_gym/Toy-Reach-v0", num_envs=2, chunk=3, group_size=2)
    assert isinstance(envs, VLAVectorEnv)
    assert (envs.num_envs, envs.chunk) == (2, 3)
    obs, infos = envs.reset(seed=0)
    assert obs in envs.observation_space
    assert infos["start_state"][0] == infos["start_state"][1]
    assert envs.spec is not None
    assert envs.spec.id == "vla_gym/Toy-Reach-v0"
    envs.close()


def test_single_tasks() -> None:
    envs = gym.make_vec("vla_gym/Toy-Reach.2-v0", num_envs=2)
    assert envs.reset()[0]["instruction"] == ("reach the blue block",) * 2
    assert vla_gym.gymnasium_id("LIBERO-90/89") in gym.registry


def test_make_and_gymnasium_s_own_check() -> None:
    env = gym.make("vla_gym/Toy-Reach-v0", render_mode="rgb_array", chunk=2)
    env.reset(seed=0)
    assert env.render().shape == (32, 32, 3)  # type: ignore[union-attr]
    assert env.step(env.action_space.sample())[4]["executed"] == 2
    with pytest.warns(UserWarning, match="infinity"):
        check_env(gym.make("vla_gym/Toy-Reach-v0").unwrapped)


def test_gymnasium_s_own_vectorisation_tells_each_slot_its_own_text() -> None:
    envs = gym.make_vec("vla_gym/Toy-Reach-v0", num_envs=2, vectorization_mode="sync")
    obs, infos = envs.reset(seed=[0, 1])
    for text, task_id in zip(obs["instruction"], infos["task_id"]):
        assert text == ("reach the red block", "reach the green block", "reach the blue block")[task_id]
    envs.step(np.zeros((2, 1, 2), dtype=np.float32))
    envs.close()


def test_importing_twice_warns_of_nothing() -> None:
    before = dict(gym.registry)
    vla_gym.register_all()
    assert dict(gym.registry) == before
