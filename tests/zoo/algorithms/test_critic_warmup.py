"""Updates and passes of the critic alone: the policy rests to the bit, and afterwards nothing is left over of it."""

from __future__ import annotations

import pytest
import torch
from stable_baselines3.common.logger import Logger

import vla_gym
from tests.zoo.stand_ins import Rows
from tests.zoo.training.test_checkpoint import StopIn, build
from zoo import PPO

pytestmark = pytest.mark.filterwarnings("ignore::zoo.algorithms.update_metrics.TrainingWarning")


def updates(model: PPO, count: int) -> None:
    """Train for so many updates more."""
    model.learn(100_000, callback=StopIn(count + 1), reset_num_timesteps=model._updates_done == 0)


def named(model: PPO) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Copies of the critic's parameters and of all others."""
    critic = {id(parameter) for parameter in list(model.policy.backbone.critic_parameters())}
    parts: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]] = ({}, {})
    for name, parameter in model.policy.named_parameters():
        parts[id(parameter) not in critic][name] = parameter.detach().clone()
    return parts


def test_the_policy_rests_to_the_bit_while_the_critic_learns():
    model = build("ppo", critic_warmup_updates=2, ent_coef=0.1)
    model.set_logger(Logger(None, [Rows()]))
    critic_before, policy_before = named(model)
    obs = model.env.reset()
    torch.manual_seed(1)
    sample = model.policy.act(obs)
    updates(model, 2)
    critic, policy = named(model)
    assert all(torch.equal(policy[name], tensor) for name, tensor in policy_before.items())
    assert not any(torch.equal(critic[name], tensor) for name, tensor in critic_before.items())
    assert torch.equal(model.policy.evaluate(obs, sample.record).logprob_BKA, sample.logprob_BKA)
    assert [row["train/critic/warmup"] for row in model.logger.output_formats[0].rows] == [1.0, 1.0]
    assert [row["train/actor/approx_kl_k3"] for row in model.logger.output_formats[0].rows] == pytest.approx(
        [0.0, 0.0], abs=1e-9
    )


def test_adams_state_of_the_critic_goes_on_and_the_policys_begins():
    model = build("ppo", critic_warmup_updates=1)
    model.set_logger(Logger(None, []))
    state = model.policy.optimizer.state
    critic = list(model.policy.backbone.critic_parameters())
    updates(model, 1)
    # Two epochs over 20 decisions in minibatches of at most 8.
    assert [float(state[parameter]["step"]) for parameter in critic] == [6.0] * len(critic)
    assert set(state) == set(critic)
    _, policy_before = named(model)
    updates(model, 1)
    assert [float(state[parameter]["step"]) for parameter in critic] == [12.0] * len(critic)
    others = [parameter for parameter in model.policy.parameters() if all(parameter is not other for other in critic)]
    assert {float(state[parameter]["step"]) for parameter in others} == {6.0}
    _, policy = named(model)
    assert not any(torch.equal(policy[name], tensor) for name, tensor in policy_before.items())
    assert all(parameter.requires_grad for parameter in model.policy.parameters())


@pytest.mark.parametrize(("family", "chunk"), [("openvla-oft", 2), ("nano-flow", 2), ("pi05", 2)])
def test_no_action_depends_on_what_warms_up(family: str, chunk: int):
    envs = vla_gym.make_vec("Toy-Reach", num_envs=2, chunk=chunk, seed=0)
    model = PPO(
        "VLAPolicy", envs, n_steps=2, device="cpu", seed=0,
        policy_kwargs={"backbone": family, "backbone_kwargs": {"size": "tiny"}},
    )  # fmt: skip
    sample = model.policy.act(model.env.reset())
    result = model.policy.evaluate(model.env.reset(), sample.record)
    critic = list(model.policy.backbone.critic_parameters())
    assert critic
    if result.logprob_BKA.requires_grad:
        used = torch.autograd.grad(result.logprob_BKA.sum(), critic, allow_unused=True, retain_graph=True)
        assert all(gradient is None or not gradient.any() for gradient in used)
    assert any(
        gradient is not None and gradient.any()
        for gradient in torch.autograd.grad(result.value_B.sum(), critic, allow_unused=True)
    )


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
