"""Rewards of one's own: Gymnasium's vector wrappers and Stable-Baselines3's around the environments that train."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import VectorObservationWrapper, VectorWrapper
from gymnasium.wrappers.vector import TransformReward
from stable_baselines3.common.vec_env import VecEnvWrapper, VecNormalize

from vla_gym import VLAVectorEnv, make_vec
from vla_gym.errors import BadValue
from zoo import GRPO, PPO
from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm

TINY = {"backbone": "nano", "backbone_kwargs": {"size": "tiny"}}
Wrap = Callable[[VLAVectorEnv], Any]


class Slow(VectorWrapper):
    """Takes a hundredth for every simulator step."""

    def step(self, actions: Any) -> Any:
        obs, reward_N, terminated_N, truncated_N, infos = self.env.step(actions)
        return obs, reward_N - 0.01 * infos["executed"], terminated_N, truncated_N, infos


class SlowAsSB3(VecEnvWrapper):
    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        obs, reward_N, done_N, infos = self.venv.step_wait()
        return obs, reward_N - 0.01 * np.array([info["executed"] for info in infos]), done_N, infos


class Same(SlowAsSB3):
    def step_wait(self) -> Any:
        return self.venv.step_wait()


@pytest.fixture
def learned() -> Iterator[Callable[..., VLAOnPolicyAlgorithm]]:
    made: list[VLAVectorEnv] = []

    def learn(wrap: Wrap, algorithm: type[VLAOnPolicyAlgorithm] = PPO, steps: int = 200, **settings: Any) -> Any:
        options = {"group_size": 4} if algorithm is GRPO else {}
        made.append(make_vec("Toy-Reach", 8, chunk=4, seed=1, **options))
        if algorithm is PPO:
            length = {} if "rounds_per_update" in settings else {"n_steps": 6}
            settings = {**length, "batch_size": 24, "n_epochs": 1, **settings}
        model = algorithm("VLAPolicy", wrap(made[-1]), seed=3, device="cpu", policy_kwargs=TINY, **settings)
        return model.learn(steps)

    yield learn
    for envs in made:
        envs.close()


def nothing(envs: VLAVectorEnv) -> VLAVectorEnv:
    return envs


def assert_same(first: VLAOnPolicyAlgorithm, second: VLAOnPolicyAlgorithm) -> None:
    assert first.num_timesteps == second.num_timesteps
    for one, other in zip(first.policy.parameters(), second.policy.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore::zoo.algorithms.update_metrics.TrainingWarning")
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [(PPO, {}), (GRPO, {}), pytest.param(PPO, {"rounds_per_update": 1}, marks=pytest.mark.thorough)],
)
def test_wrappers_that_change_nothing_change_no_bit(
    learned: Callable[..., VLAOnPolicyAlgorithm], algorithm: type[VLAOnPolicyAlgorithm], settings: dict[str, Any]
) -> None:
    plain = learned(nothing, algorithm, **settings)
    assert_same(plain, learned(VectorWrapper, algorithm, **settings))
    assert_same(plain, learned(lambda envs: Same(envs.as_sb3()), algorithm, **settings))


def test_a_reward_of_one_s_own_is_what_ppo_learns_from(learned: Callable[..., VLAOnPolicyAlgorithm]) -> None:
    plain, slow, slow_too = (learned(wrap, steps=1) for wrap in (nothing, Slow, lambda envs: SlowAsSB3(envs.as_sb3())))
    assert_same(slow, slow_too)
    buffer = slow.chunk_buffer
    paid_TN = plain.chunk_buffer.reward_TN
    assert paid_TN.any()
    torch.testing.assert_close(buffer.reward_TN, paid_TN - 0.01 * buffer.executed_TN)
    records = [info["r"] for info in slow.ep_info_buffer or ()]
    assert set(records) <= {0.0, 1.0}, "the monitor keeps the environment's own return"


def test_rewards_by_simulator_step_get_the_rest_in_the_last_one() -> None:
    envs = make_vec("Toy-Reach", 2, chunk=4, seed=1, num_workers=0)
    envs.as_sb3()
    envs.reset()
    envs.step(np.zeros((2, 4, envs.single_action_space.shape[1]), dtype=np.float32))
    step = envs.last_step
    assert step.executed_n.tolist() == [4, 4]
    paid = step.wrapped(step.obs, np.array([0.5, -2.0]))
    assert paid.step_reward_nK.tolist() == [[0, 0, 0, 0.5], [0, 0, 0, -2.0]]
    assert step.step_reward_nK.sum() == 0
    envs.close()


def test_wrappers_that_cannot_be_trained_through_are_refused(learned: Callable[..., VLAOnPolicyAlgorithm]) -> None:
    class Bare(VectorObservationWrapper):
        def __init__(self, env: Any) -> None:
            super().__init__(env)
            self.observation_space = spaces.Dict({"image": env.observation_space["image"]})

        def observations(self, observations: Any) -> Any:
            return {"image": observations["image"]}

    for wrap, says in (
        (Bare, "Bare changes spaces"),
        (lambda envs: TransformReward(envs, lambda reward_N: reward_N * np.nan), "rewards must be 8 finite numbers"),
        (lambda envs: VecNormalize(envs.as_sb3(), norm_obs_keys=["state"]), "VecNormalize changes observations"),
    ):
        with pytest.raises(BadValue, match=says):
            learned(wrap)
