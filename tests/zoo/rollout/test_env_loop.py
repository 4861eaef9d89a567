"""Rows of decisions are the same rows however many stages the slots are stepped in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback

from vla_gym import VLAVectorEnv, make_vec
from vla_policies.types import ActionSample
from zoo import GRPO, PPO
from zoo.rollout.env_loop import joined_samples, staged_rows

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
    return PPO(
        "VLAPolicy", envs, n_steps=6, batch_size=24, n_epochs=1, seed=3, policy_kwargs=TINY, **settings
    )


def grpo(envs: VLAVectorEnv) -> GRPO:
    return GRPO("VLAPolicy", envs, batch_size=64, seed=3, policy_kwargs=TINY)


def assert_same_rollout(one: Any, other: Any) -> None:
    ours, theirs = one.chunk_buffer, other.chunk_buffer
    for key in ours.obs:
        assert torch.equal(ours.obs[key], theirs.obs[key]), key
    assert torch.equal(ours.record["token"], theirs.record["token"])
    for name in ("reward_TN", "executed_TN", "terminated_TN", "truncated_TN"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    torch.testing.assert_close(ours.logprob_TNKA, theirs.logprob_TNKA, rtol=0, atol=1e-5)
    for name in ("value_TN", "final_value_TN", "advantage_TN"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=0, atol=1e-4)
    assert one.num_timesteps == other.num_timesteps
    assert list(one.ep_info_buffer) or one.num_timesteps
    for key, value in one._last_obs.items():
        assert np.array_equal(value, other._last_obs[key])


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
    assert whole.experience_of_groups.outcomes == staged.experience_of_groups.outcomes


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
    assert not any(stage.under_way for stage in envs.stages)
    assert envs._runner.num_under_way == 0
    images = model._last_obs["image"]
    assert np.array_equal(images, np.stack(envs.render()))
    model.learn(1000, reset_num_timesteps=False, callback=StopAt(3))


def test_stages_take_turns(toy: Callable[..., VLAVectorEnv]):
    model = ppo(toy(pipeline_stages=2))
    model._last_obs = model.env.reset()
    asked: list[tuple[int, list[int]]] = []
    decide = model.decide

    def noted(obs: Any, decision: int, slots: np.ndarray) -> ActionSample:
        asked.append((decision, slots.tolist()))
        return decide(obs, decision, slots)

    model.decide = noted  # type: ignore[method-assign]
    rows = list(staged_rows(model, model.env, 2, first_decision=7, renew=True))
    first, second = [0, 1, 2, 3], [4, 5, 6, 7]
    # (A stage in which an episode ended spends a turn on beginning the next.)
    assert asked[:2] == [(7, first), (7, second)]
    assert sorted(asked) == [(7, first), (7, second), (8, first), (8, second)]
    assert [row.slots.tolist() for row in rows] == [first + second] * 2


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
