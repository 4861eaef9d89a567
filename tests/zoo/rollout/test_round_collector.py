"""PPO's rounds: one episode in every sub-environment, nothing after its end, every episode alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stable_baselines3.common.logger import Logger

import vla_gym
from tests.zoo.stand_ins import Rows
from tests.zoo.training.test_checkpoint import TINY
from zoo import PPO

pytestmark = pytest.mark.filterwarnings("ignore::zoo.algorithms.update_metrics.TrainingWarning")


def rounds(**settings: Any) -> PPO:
    """Two rounds of four episodes of at most three decisions of four steps."""
    envs = vla_gym.make_vec("Toy-Reach", num_envs=4, chunk=4, seed=5)
    chosen = {"rounds_per_update": 2, "batch_size": 8, "n_epochs": 1, "gamma": 1.0, "bootstrap_time_limit": False}
    model = PPO("VLAPolicy", envs, policy_kwargs=TINY, seed=3, device="cpu", **{**chosen, **settings})
    model.set_logger(Logger(None, [Rows()]))
    return model


def test_each_column_holds_one_episode_and_nothing_after_it() -> None:
    model = rounds(normalize_advantage=False, gae_lambda=1.0)
    model.learn(1)
    buffer = model.chunk_buffer
    assert (model.n_steps, buffer.columns) == (3, 8)
    assert buffer.terminated_TN.sum(dim=0).tolist() == [1] * 8
    last_N = buffer.terminated_TN.long().argmax(dim=0)
    after_TN = torch.arange(3)[:, None] > last_N
    assert (buffer.executed_TN[after_TN] == 0).all()
    assert (buffer.executed_TN[~after_TN] > 0).all()
    # Without discount and bootstrap every decision's return is its episode's success.
    success_N = buffer.reward_TN.sum(dim=0)
    expected_TN = torch.where(after_TN, 0.0, success_N)
    torch.testing.assert_close(torch.where(after_TN, 0.0, buffer.return_TN), expected_TN)
    assert model.rollout_stats.num_sim_steps == buffer.executed_TN.sum()
    assert len(model.rollout_stats.episodes) == 8


def test_a_time_limit_bootstraps_in_rounds_too() -> None:
    model = rounds(bootstrap_time_limit=True)
    model.learn(1)
    buffer = model.chunk_buffer
    assert (buffer.terminated_TN ^ buffer.truncated_TN).sum(dim=0).tolist() == [1] * 8
    assert (buffer.truncated_TN == (buffer.final_value_TN != 0)).all()


@pytest.mark.parametrize("masked", [False, True])
def test_optimiser_steps_of_an_update(masked: bool) -> None:
    model = rounds(loss_weight="trajectory", masked_minibatches=masked)
    model.learn(1)
    scored = int((model.chunk_buffer.executed_TN > 0).sum())
    (taken,) = {int(state["step"]) for state in model.policy.optimizer.state.values()}
    assert taken == (24 // 8 if masked else -(-scored // 8))
