"""The action is the noise that a flow policy begins at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

from vla_gym import make_vec
from vla_gym.errors import BadValue
from vla_policies import VLAPolicy
from vla_policies.flow_backbone import FIXED_NOISE_SEED, FlowBackbone
from zoo.rollout.noise_action_env import NoiseActionVecEnv

NUM_ENVS = 3


@pytest.fixture
def toy() -> Iterator[VecEnv]:
    view = make_vec("Toy-Reach", NUM_ENVS, chunk=4, seed=1).as_sb3()
    yield view
    view.close()


def policy_for(view: VecEnv, family: str = "nano-flow") -> VLAPolicy:
    torch.manual_seed(0)
    spaces = (view.observation_space, view.action_space)
    return VLAPolicy(*spaces, lambda _: 1e-4, backbone=family, backbone_kwargs={"size": "tiny"})


def backbone_of(policy: VLAPolicy) -> FlowBackbone:
    assert isinstance(policy.backbone, FlowBackbone)
    return policy.backbone


def test_the_policys_own_noise_gives_the_policys_own_actions(toy: VecEnv) -> None:
    policy = policy_for(toy)
    backbone = backbone_of(policy)
    envs = NoiseActionVecEnv(toy, policy, bound=5.0, repeat=False)
    obs = toy.reset()
    envs._remember(obs)
    shape = (backbone.horizon, backbone.flow_width)
    own = torch.randn(shape, generator=torch.Generator().manual_seed(FIXED_NOISE_SEED)).numpy()
    got = envs.chunks(np.tile(own.reshape(-1), (NUM_ENVS, 1)))
    expected, _ = policy.predict(obs, deterministic=True)  # type: ignore[arg-type]
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_one_noise_serves_every_action_of_the_chunk(toy: VecEnv) -> None:
    policy = policy_for(toy)
    once, each = (NoiseActionVecEnv(toy, policy, repeat=repeat) for repeat in (True, False))
    horizon, width = backbone_of(policy).horizon, backbone_of(policy).flow_width
    assert once.action_space.shape == (width,)
    assert each.action_space.shape == (horizon * width,)
    obs = toy.reset()
    for envs in (once, each):
        envs._remember(obs)
    noise = np.random.default_rng(0).standard_normal((NUM_ENVS, width)).astype(np.float32)
    assert np.array_equal(once.chunks(noise), each.chunks(np.tile(noise, (1, horizon))))
    assert not np.array_equal(once.chunks(noise), once.chunks(-noise))


def test_observations_are_the_experts_feature_and_the_state(toy: VecEnv) -> None:
    policy = policy_for(toy)
    envs = NoiseActionVecEnv(toy, policy)
    toy.seed(7)
    got = envs.reset()
    toy.seed(7)
    obs: Any = toy.reset()
    state = np.asarray(obs["state"])
    assert envs.observation_space.shape == got.shape[1:]
    np.testing.assert_array_equal(got[:, -state.shape[1] :], state)
    backbone = backbone_of(policy)
    inputs = policy.prepare(obs)
    with torch.no_grad():
        zeros = torch.zeros(NUM_ENVS, backbone.horizon, backbone.flow_width)
        hidden = backbone.denoise(backbone.encode(inputs), zeros, torch.ones(NUM_ENVS)).hidden_BHE
    np.testing.assert_allclose(got[:, : -state.shape[1]], hidden.mean(dim=1).numpy(), atol=1e-6)


@pytest.mark.parametrize("reward", ["step_cost", pytest.param("environment", marks=pytest.mark.thorough)])
def test_rewards_and_last_observations(toy: VecEnv, reward: Any) -> None:
    envs = NoiseActionVecEnv(toy, policy_for(toy), reward=reward)
    generator = np.random.default_rng(0)
    envs.reset()
    ended = {False: 0, True: 0}
    for _ in range(60):
        step: Any = envs.step(generator.uniform(-1, 1, (NUM_ENVS, 2)).astype(np.float32))
        obs, rewards, dones, infos = step
        assert rewards.dtype == np.float32
        for env in range(NUM_ENVS):
            solved = dones[env] and infos[env]["is_success"]
            # Sparse rewards of the environment are 1 for the decision that solves it, else 0.
            assert rewards[env] == (float(solved) if reward == "environment" else float(solved) - 1)
            if dones[env]:
                ended[bool(solved)] += 1
                assert infos[env]["terminal_observation"].shape == envs.observation_space.shape
                assert not np.array_equal(infos[env]["terminal_observation"], obs[env])
    assert all(ended.values())


def test_sac_of_stable_baselines3_trains_on_it_and_leaves_the_policy_alone(toy: VecEnv) -> None:
    policy = policy_for(toy)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    model = SAC("MlpPolicy", NoiseActionVecEnv(toy, policy), learning_starts=6, batch_size=8, seed=0)
    first = [weight.clone() for weight in model.actor.parameters()]
    model.learn(24)
    assert not all(map(torch.equal, first, model.actor.parameters()))
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())


def test_an_environment_of_other_chunks_is_refused_and_other_pictures_are_scaled(toy: VecEnv) -> None:
    policy = policy_for(toy)
    for options, differs in (({"chunk": 2}, "chunk=4"), ({"chunk": 4, "image_size": 32}, "")):
        view = make_vec("Toy-Reach", 1, **options).as_sb3()  # type: ignore[arg-type]
        if differs:
            with pytest.raises(BadValue, match=f"the policy was made for {differs}, the environment has chunk=2"):
                NoiseActionVecEnv(view, policy)
        else:
            assert np.isfinite(NoiseActionVecEnv(view, policy).reset()).all()
        view.close()


def test_an_evaluation_of_stable_baselines3_reports_the_rewards_paid(toy: VecEnv) -> None:
    envs = NoiseActionVecEnv(toy, policy_for(toy))
    returns, steps = evaluate_policy(SAC("MlpPolicy", envs, buffer_size=10), envs, 6, return_episode_rewards=True)
    assert isinstance(returns, list)
    assert isinstance(steps, list)
    # Lengths are simulator steps, of which a decision has 4; the decision that solves the task costs nothing.
    cost = [total + np.ceil(length / 4) for total, length in zip(returns, steps, strict=True)]
    assert set(cost) <= {0.0, 1.0}
    assert min(returns) < 0
