"""OpenVLA and OpenVLA-OFT as policies that learn: under Stable-Baselines3's PPO and under ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

import vla_gym
from vla_gym.observation import encode_instruction
from vla_policies import VLAPolicy
from vla_policies.openvla.policy import GeneratedDistribution

SETTINGS = {"n_steps": 4, "batch_size": 8, "n_epochs": 1, "seed": 0, "device": "cpu"}
FAMILIES = pytest.mark.parametrize(("family", "chunk"), [("openvla", 1), ("openvla-oft", 4)])
TINY = {"size": "tiny"}


def toy(chunk: int) -> VecEnv:
    return vla_gym.make_vec("Toy-Reach", num_envs=4, chunk=chunk, seed=0).as_sb3()


def make(family: str, chunk: int, **settings: Any) -> VLAPolicy:
    torch.manual_seed(0)
    envs = toy(chunk)
    policy = VLAPolicy(
        envs.observation_space,
        envs.action_space,
        lambda _: 1e-3,
        **{"backbone": family, "backbone_kwargs": TINY, **settings},
    )
    # A trained network prefers some tokens; a fresh one finds all of them alike.
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(3.0)
    return policy


def observations(chunk: int) -> dict[str, np.ndarray]:
    """Three sentences of different lengths."""
    obs: dict[str, np.ndarray] = toy(chunk).reset()  # type: ignore[assignment]
    sentences = ("reach the red block", "go", "reach the blue block, please", "go")
    return obs | {"instruction": np.stack([encode_instruction(sentence) for sentence in sentences])}


@FAMILIES
def test_sb3_methods_agree_with_ours(family: str, chunk: int) -> None:
    policy = make(family, chunk)
    obs = policy.obs_to_tensor(observations(chunk))[0]
    with torch.no_grad():
        actions, values, log_prob = policy(obs)
        again_values, again_log_prob, entropy = policy.evaluate_actions(obs, actions.flatten(1))
        assert torch.equal(again_log_prob, log_prob)
        assert torch.equal(again_values, values)
        assert entropy is not None
        assert (entropy > 0).all()
        distribution = policy.get_distribution(obs)
        assert torch.equal(distribution.log_prob(actions), log_prob)
        assert torch.equal(distribution.mode(), policy._predict(obs, deterministic=True))
        assert distribution.sample().shape == (4, chunk, 2)


def test_tokens_after_the_first_depend_on_those_before() -> None:
    policy, obs = make("openvla", 1), observations(1)
    token = policy.act(obs).record["token"]
    other = token.clone()
    other[..., 0] = (other[..., 0] + 100) % 256
    first = policy.evaluate(obs, {"token": token}).logprob_BKA
    second = policy.evaluate(obs, {"token": other}).logprob_BKA
    assert not torch.allclose(first[..., 1], second[..., 1])
    assert isinstance(policy.get_distribution(obs), GeneratedDistribution)
    assert policy.get_distribution(obs).entropy() is None


@pytest.mark.processes
@pytest.mark.parametrize(
    ("family", "chunk"), [("openvla", 1), pytest.param("openvla-oft", 4, marks=pytest.mark.thorough)]
)
def test_learns_under_stable_baselines3(family: str, chunk: int, tmp_path: Path) -> None:
    envs = toy(chunk)
    model = PPO(VLAPolicy, envs, policy_kwargs={"backbone": family, "backbone_kwargs": TINY}, **SETTINGS)
    before = model.policy.parameters_to_vector()
    model.learn(16)
    assert not np.array_equal(before, model.policy.parameters_to_vector())
    mean, _ = evaluate_policy(model, envs, n_eval_episodes=2)
    assert np.isfinite(mean)
    model.save(tmp_path / "model.zip")
    loaded = PPO.load(tmp_path / "model.zip", env=envs, device="cpu")
    obs = envs.reset()
    assert np.array_equal(model.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0])
