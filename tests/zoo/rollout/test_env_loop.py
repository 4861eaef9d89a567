"""Rows of decisions are the same rows however many stages the sub-environments are stepped in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnvWrapper

from vla_gym import VLAVectorEnv, make_vec
from vla_policies.types import ActionSample
from zoo import GRPO, PPO
from zoo.rollout.env_loop import PlainEnvLoop, StagedEnvLoop, env_loop, joined_samples
from zoo.rollout.stats import PhaseClock

pytestmark = pytest.mark.processes

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


@pytest.mark.parametrize("options", [{"num_workers": 2, "pipeline_stages": 2}, {"pipeline_stages": 4}])
def test_ppo_collects_the_same_rollout_in_stages(toy: Callable[..., VLAVectorEnv], options: dict[str, int]):
    whole, staged = ppo(toy()), ppo(toy(**options))
    for model in (whole, staged):
        # Two rollouts; episodes of Toy-Reach are at most 12 steps, three decisions, so each sees ends and beginnings.
        model.learn(8 * 6 * 4 + 1)
    assert whole.chunk_buffer.truncated_TN.any()
    assert_same_rollout(whole, staged)


@pytest.mark.filterwarnings("ignore::zoo.algorithms.training_warnings.TrainingWarning")
def test_grpo_collects_the_same_rounds_in_stages(toy: Callable[..., VLAVectorEnv]):
    whole, staged = grpo(toy(group_size=4)), grpo(toy(group_size=4, num_workers=2, pipeline_stages=2))
    for model in (whole, staged):
        model.learn(1)
    assert_same_rollout(whole, staged)
    assert whole.rollout_stats is not None
    assert staged.rollout_stats is not None
    assert whole.rollout_stats.groups.outcomes == staged.rollout_stats.groups.outcomes


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


def test_stages_take_turns(toy: Callable[..., VLAVectorEnv]):
    policy, env = ppo(toy()).policy, toy(pipeline_stages=2).as_sb3()
    asked: list[tuple[int, list[int]]] = []

    def act(obs: Any, decision: int, env_n: np.ndarray) -> ActionSample:
        asked.append((decision, env_n.tolist()))
        return policy.act(obs)

    loop = StagedEnvLoop(env, env.reset(), act, PhaseClock())
    steps = list(loop.steps(2, first_decision=7))
    first, second = [0, 1, 2, 3], [4, 5, 6, 7]
    # (A stage in which an episode ended spends a turn on beginning the next.)
    assert asked[:2] == [(7, first), (7, second)]
    assert sorted(asked) == [(7, first), (7, second), (8, first), (8, second)]
    assert [step.env_n.tolist() for step in steps] == [first + second] * 2


class Passing(VecEnvWrapper):
    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        return self.venv.step_wait()


def test_any_vector_environment_can_be_looped(toy: Callable[..., VLAVectorEnv]):
    """A wrapped environment is stepped through its wrapper, and says the same."""
    policy = ppo(toy()).policy
    loops = [
        env_loop(env, env.reset(), lambda obs, *_: policy.act(obs, deterministic=True), PhaseClock())
        for env in (toy().as_sb3(), Passing(toy().as_sb3()))
    ]
    assert [type(loop) for loop in loops] == [StagedEnvLoop, PlainEnvLoop]
    for staged, plain in zip(*(loop.steps(4) for loop in loops), strict=True):
        for name in (
            "reward_n",
            "terminated_n",
            "truncated_n",
            "executed_n",
            "counted_n",
            "task_id_n",
            "lost_n",
        ):
            assert np.array_equal(getattr(staged, name), getattr(plain, name)), name
        assert list(staged.start_state_n) == list(plain.start_state_n)
        assert np.array_equal(staged.next_obs["image"], plain.next_obs["image"])


def test_samples_are_joined_in_order():
    def sample(numbers: list[float]) -> ActionSample:
        one_B = torch.tensor(numbers)
        one_BKA = one_B[:, None, None].expand(-1, 2, 3)
        return ActionSample(one_BKA, -one_BKA, one_B, {"token": one_BKA.long()}, one_B[:, None].expand(-1, 2))

    both = joined_samples([sample([1.0, 2.0]), sample([3.0])])
    assert both.value_B.tolist() == [1, 2, 3]
    assert both.action_BKA[:, 0, 0].tolist() == [1, 2, 3]
    assert both.record["token"][:, 1, 2].tolist() == [1, 2, 3]
    assert both.value_BK is not None
    assert both.value_BK.shape == (3, 2)
