"""Decisions are the same however many stages the sub-environments are stepped in; forms of environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers import TransformReward
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from vla_gym import VLAVectorEnv, make_vec
from vla_gym.errors import BadValue
from vla_gym.vector.sb3 import SB3VecEnv
from zoo import GRPO, PPO
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.collector import check_share
from zoo.rollout.env_loop import sb3_view

TINY = {"backbone": "nano", "backbone_kwargs": {"size": "tiny"}}


@pytest.fixture
def toy() -> Iterator[Callable[..., VLAVectorEnv]]:
    made: list[VLAVectorEnv] = []

    def make(**options: Any) -> VLAVectorEnv:
        made.append(make_vec("Toy-Reach", 8, chunk=4, seed=1, **options))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


def ppo(envs: VLAVectorEnv, **settings: Any) -> PPO:
    return PPO("VLAPolicy", envs, n_steps=6, batch_size=24, n_epochs=1, seed=3, policy_kwargs=TINY, **settings)


def grpo(envs: VLAVectorEnv) -> GRPO:
    return GRPO("VLAPolicy", envs, batch_size=64, seed=3, policy_kwargs=TINY)


def assert_same_rollout(first: Any, second: Any) -> None:
    first_buffer, second_buffer = first.chunk_buffer, second.chunk_buffer
    for key in first_buffer.obs:
        assert torch.equal(first_buffer.obs[key], second_buffer.obs[key]), key
    assert torch.equal(first_buffer.record["token"], second_buffer.record["token"])
    for name in ("reward_TN", "executed_TN", "terminated_TN", "truncated_TN"):
        assert torch.equal(getattr(first_buffer, name), getattr(second_buffer, name)), name
    torch.testing.assert_close(first_buffer.logprob_TNKA, second_buffer.logprob_TNKA, rtol=0, atol=1e-5)
    for name in ("value_TN", "final_value_TN", "advantage_TN"):
        torch.testing.assert_close(getattr(first_buffer, name), getattr(second_buffer, name), rtol=0, atol=1e-4)
    assert first.num_timesteps == second.num_timesteps
    assert list(first.ep_info_buffer) or first.num_timesteps
    for key, value in first._last_obs.items():
        assert np.array_equal(value, second._last_obs[key])


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 2, "pipeline_stages": 2}, pytest.param({"pipeline_stages": 4}, marks=pytest.mark.thorough)],
)
def test_ppo_collects_the_same_rollout_in_stages(toy: Callable[..., VLAVectorEnv], options: dict[str, int]):
    whole, staged = ppo(toy()), ppo(toy(**options))
    for model in (whole, staged):
        # Two rollouts; episodes of Toy-Reach are at most 12 steps, three decisions, so each sees ends and beginnings.
        model.learn(8 * 6 * 4 + 1)
    assert whole.chunk_buffer.truncated_TN.any()
    assert_same_rollout(whole, staged)


@pytest.mark.filterwarnings("ignore::zoo.algorithms.update_metrics.TrainingWarning")
def test_grpo_collects_the_same_rounds_in_stages(toy: Callable[..., VLAVectorEnv]):
    whole, staged = grpo(toy(group_size=4)), grpo(toy(group_size=4, num_workers=2, pipeline_stages=2))
    for model in (whole, staged):
        model.learn(1)
    assert_same_rollout(whole, staged)
    assert whole.rollout_stats is not None
    assert staged.rollout_stats is not None
    assert torch.equal(whole.rollout_stats.groups.solved_N, staged.rollout_stats.groups.solved_N)


class StopAt(BaseCallback):
    def __init__(self, decision: int) -> None:
        super().__init__()
        self._decision = decision

    def _on_step(self) -> bool:
        return self.n_calls < self._decision


def test_a_rollout_that_is_stopped_leaves_nothing_under_way(toy: Callable[..., VLAVectorEnv]):
    envs = toy(num_workers=2, pipeline_stages=2)
    model = ppo(envs)
    model.learn(1000, callback=StopAt(5))
    assert not any(stage.pending for stage in envs.stages)
    assert envs._runner.num_pending == 0
    images = model._last_obs["image"]
    assert np.array_equal(images, np.stack(envs.render()))
    model.learn(1000, reset_num_timesteps=False, callback=StopAt(3))


@pytest.mark.filterwarnings("ignore:The `render_mode` attribute")
@pytest.mark.parametrize(
    "make",
    [
        lambda: VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")]), norm_obs=False),
        lambda: TransformReward(gym.make("vla_gym/Toy-Reach-v0"), lambda reward: 2 * reward),
        lambda: gym.make("CartPole-v1"),
        lambda: "CartPole-v1",
    ],
)
def test_what_the_loop_cannot_step_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(BadValue, match=r"vla_gym\.make_vec"):
        sb3_view(make())


FORMS: dict[str, Callable[[], Any]] = {
    "made by Gymnasium": lambda: gym.make("vla_gym/Toy-Reach-v0", chunk=4),
    "without a checker": lambda: gym.make("vla_gym/Toy-Reach-v0", chunk=4, disable_env_checker=True),
    "bare": lambda: gym.make("vla_gym/Toy-Reach-v0", chunk=4).unwrapped,
    "Gymnasium's name": lambda: "vla_gym/Toy-Reach-v0",
    "a task of it": lambda: "vla_gym/Toy-Reach.1-v0",
    "our name": lambda: "Toy-Reach",
    "vectors": lambda: make_vec("Toy-Reach", chunk=4),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_trains(form: str) -> None:
    model = PPO("VLAPolicy", FORMS[form](), n_steps=4, batch_size=4, n_epochs=1, policy_kwargs=TINY, device="cpu")
    assert isinstance(model.env, SB3VecEnv)
    model.learn(1)
    assert model.num_timesteps >= 4
    model.env.close()


def test_two_ranks_with_the_same_environments_are_refused() -> None:
    envs = make_vec("Toy-Reach", num_envs=4, group_size=2)
    check_share(envs, ProcessGroup())
    check_share(envs, ProcessGroup(0, 2))
    with pytest.raises(BadValue, match=r"rank 1 of 2 has .* from group 0 on.*group_offset=2, num_groups=4"):
        check_share(envs, ProcessGroup(1, 2))
    check_share(make_vec("Toy-Reach", num_envs=4, group_size=2, group_offset=2), ProcessGroup(1, 2))
