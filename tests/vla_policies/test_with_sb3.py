"""`VLAPolicy` under the unmodified Stable-Baselines3, on Toy-Reach."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

import vla_gym
from vla_policies import VLAPolicy

POLICY = {"backbone": "nano", "backbone_kwargs": {"size": "tiny", "width": 32, "heads": 2}}


def ppo(envs: VecEnv | gym.Env, **policy_kwargs: object) -> PPO:
    return PPO(
        VLAPolicy,
        envs,
        n_steps=8,
        batch_size=8,
        n_epochs=1,
        seed=0,
        device="cpu",
        policy_kwargs={**POLICY, **policy_kwargs},
    )


@pytest.mark.parametrize(
    ("family", "chunk"), [("nano", 4), ("openvla", 1), pytest.param("openvla-oft", 4, marks=pytest.mark.thorough)]
)
def test_learns_evaluates_saves_and_loads(family: str, chunk: int, tmp_path: Path) -> None:
    envs = vla_gym.make_vec("Toy-Reach", num_envs=4, chunk=chunk, seed=0).as_sb3()
    other = {} if family == "nano" else {"backbone": family, "backbone_kwargs": {"size": "tiny"}}
    model = ppo(envs, value_lr=1e-3, **other)
    before = model.policy.parameters_to_vector()
    model.learn(64)
    assert model.num_timesteps == 64
    assert not np.array_equal(before, model.policy.parameters_to_vector())
    mean, _ = evaluate_policy(model, envs, n_eval_episodes=4)
    assert 0.0 <= float(np.mean(mean)) <= 1.0
    model.save(tmp_path / "model.zip")
    loaded = PPO.load(tmp_path / "model.zip", env=envs, device="cpu")
    obs = envs.reset()
    assert np.array_equal(model.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0])
    saved, restored = model.policy.optimizer.state_dict(), loaded.policy.optimizer.state_dict()
    assert saved["param_groups"] == restored["param_groups"]
    assert all(torch.equal(saved["state"][i]["exp_avg"], restored["state"][i]["exp_avg"]) for i in saved["state"])
    loaded.learn(32, reset_num_timesteps=False)


@pytest.mark.parametrize("wrapped", [False, True], ids=["gymnasium.make", "make_vec_env"])
def test_registered_ids_train_without_a_view(wrapped: bool) -> None:
    """Monitor, DummyVecEnv and VecTransposeImage are Stable-Baselines3's own here."""
    if wrapped:
        env = make_vec_env("vla_gym/Toy-Reach-v0", n_envs=2, env_kwargs={"chunk": 4})
    else:
        env = gym.make("vla_gym/Toy-Reach-v0", chunk=4)
    model = ppo(env).learn(32)
    assert model.num_timesteps == 32
    assert len(model.ep_success_buffer) == len(model.ep_info_buffer) > 0
    assert model.observation_space["instruction"].dtype == np.uint8
    mean, _ = evaluate_policy(model, make_vec_env("vla_gym/Toy-Reach-v0", env_kwargs={"chunk": 4}), n_eval_episodes=2)
    assert 0.0 <= float(np.mean(mean)) <= 1.0


@pytest.mark.filterwarnings("ignore:The minimal resolution for an image:UserWarning")
def test_sb3s_checker_accepts_a_registered_id() -> None:
    check_env(gym.make("vla_gym/Toy-Reach-v0"))
