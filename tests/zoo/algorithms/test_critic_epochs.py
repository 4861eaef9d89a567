"""Passes of the critic alone after those of the policy."""

from __future__ import annotations

import pytest
import torch
from stable_baselines3.common.logger import Logger

from tests.zoo.algorithms.test_critic_warmup import named, updates
from tests.zoo.stand_ins import Rows
from tests.zoo.training.test_checkpoint import build
from vla_gym.errors import BadValue
from zoo import PPO

pytestmark = pytest.mark.filterwarnings("ignore::zoo.algorithms.training_warnings.TrainingWarning")


def steps_taken(model: PPO) -> tuple[set[float], set[float]]:
    """Optimiser steps of the critic's parameters and of all others."""
    critic = {id(parameter) for parameter in model.policy.backbone.critic_parameters()}
    taken: tuple[set[float], set[float]] = (set(), set())
    for parameter, state in model.policy.optimizer.state.items():
        taken[id(parameter) not in critic].add(float(state["step"]))
    return taken


def test_the_critic_makes_more_passes_than_the_policy():
    model = build("ppo", critic_epochs=3)
    model.set_logger(Logger(None, [Rows()]))
    updates(model, 1)
    # 20 decisions in minibatches of at most 8: three steps a pass, two passes of both and three of the critic.
    assert steps_taken(model) == ({15.0}, {6.0})
    assert all(parameter.requires_grad for parameter in model.policy.parameters())
    (row,) = model.logger.output_formats[0].rows
    assert row["train/critic/value_loss_fitted"] < row["train/critic/value_loss"]


def test_the_policy_is_that_of_no_such_passes():
    with_passes, without = (build("ppo", critic_epochs=passes) for passes in (3, 0))
    for model in (with_passes, without):
        model.set_logger(Logger(None, []))
        updates(model, 1)
    (critic, policy), (other_critic, other_policy) = named(with_passes), named(without)
    assert all(torch.equal(tensor, other_policy[name]) for name, tensor in policy.items())
    assert not any(torch.equal(tensor, other_critic[name]) for name, tensor in critic.items())


def test_encodings_are_kept_meanwhile_unless_ranks_share_a_sharded_policy():
    learner = build("ppo").learner
    backbone = learner.policy.backbone
    with learner.train_critic():
        assert backbone.keeps_features
    assert not backbone.keeps_features
    learner.sharded = True
    with learner.train_critic():
        assert not backbone.keeps_features


@pytest.mark.parametrize("name", ["critic_epochs", "critic_warmup_updates"])
def test_they_need_a_critic(name: str):
    with pytest.raises(BadValue, match=f"{name} must be at least 0"):
        build("ppo", **{name: -1})
    with pytest.raises(BadValue, match="vf_coef"):
        build("ppo", **{name: 1}, vf_coef=0.0)
