"""Groups, rounds and weights of GRPO, on Toy-Reach."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

import vla_gym
from tests.zoo.stand_ins import Rows
from vla_gym.adapters.toy import toy_benchmark
from vla_gym.errors import BadValue, UnknownName
from vla_gym.specs import Benchmark
from vla_policies.types import ActionSample
from zoo import GRPO
from zoo.algorithms.update_metrics import NothingToLearn
from zoo.rollout.advantages import group_advantage
from zoo.rollout.stats import GroupStats, RolloutStats

TINY = {"backbone": "nano", "backbone_kwargs": {"size": "tiny"}}


def toy(**kwargs: Any) -> GRPO:
    envs = vla_gym.make_vec("Toy-Reach", num_envs=8, chunk=3, group_size=4, seed=3)
    settings = {"batch_size": 8, "learning_rate": 1e-3, "device": "cpu", "seed": 0, **kwargs}
    model = GRPO("VLAPolicy", envs, policy_kwargs=TINY, **settings)
    model.set_logger(Logger(None, [Rows()]))
    return model


def two_groups(**kwargs: Any) -> GRPO:
    """As if this had just been collected, in four decisions of three steps (K * A = 6 tokens).

    Group 0: sub-environment 1 succeeds at once, the others run out of time; group 1: all run out of time.
    """
    model = toy(**kwargs)
    model.n_steps = 4
    model._fit_to_env = lambda: None  # type: ignore[method-assign]
    model._setup_model()
    buffer = model.chunk_buffer
    buffer.logprob_TNKA = torch.zeros(4, 8, 3, 2)
    buffer.executed_TN.fill_(3)
    buffer.reward_TN[0, 1] = 1.0
    buffer.executed_TN[:, 1] = torch.tensor([2, 0, 0, 0])
    return model


def collected(*lost: int) -> RolloutStats:
    """Its numbers, with the episodes of the sub-environments `lost` lost."""
    lost_N = torch.zeros(8, dtype=torch.bool)
    lost_N[list(lost)] = True
    groups = GroupStats(lost_N, torch.arange(8) == 1)
    return RolloutStats(
        num_timesteps=0,
        num_decisions=0,
        num_sim_steps=0,
        num_lost=len(lost),
        episodes=(),
        tasks=frozenset(),
        groups=groups,
    )


def test_every_executed_decision_carries_its_episodes_group_advantage():
    model = two_groups()
    model.compute_returns_and_advantages(collected())
    expected_N = group_advantage(torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.0] * 4])).flatten()
    advantage_TN = model.chunk_buffer.advantage_TN
    assert advantage_TN[0].tolist() == expected_N.tolist()
    assert advantage_TN[:, 1].tolist() == [expected_N[1].item(), 0, 0, 0]


def test_with_masked_minibatches_every_episode_weighs_one_of_all_episodes():
    model = two_groups(masked_minibatches=True)
    model.compute_returns_and_advantages(collected())
    buffer = model.chunk_buffer
    # RLinf's m * loss * (T / n_b): 4 decisions over 24 tokens, or over the 4 that the solved episode ran.
    assert buffer.element_scale_TN[:, 0].tolist() == pytest.approx([4 / 24] * 4)
    assert buffer.element_scale_TN[:, 1].tolist() == pytest.approx([4 / 4, 0, 0, 0])
    # Over the 32 places of the rollout each kept episode weighs 1/8, and group 1 nothing.
    weight_N = (buffer.element_scale_TN * buffer.elements_TN("token")).sum(dim=0) / 32
    assert weight_N.tolist() == pytest.approx([1 / 8] * 4 + [0] * 4)
    sizes = [sum(part.weight for part in minibatch) for minibatch in model.rollout_data().minibatches(0)]
    # Four minibatches of eight places; 13 decisions are scored.
    assert len(sizes) == 4
    assert sum(sizes) == pytest.approx(13 / 8)


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"advantage": "centered"}, UnknownName, "centred"),
        ({"loss_weight": "decision"}, UnknownName, "constant, token, trajectory"),
        ({"loss_weight": "token", "masked_minibatches": True}, BadValue, "leave one of the two out"),
        ({"score_bounds": (0.9, 0.1)}, BadValue, r"low below high, got \(0.9, 0.1\)"),
        ({"score_bounds": (0.5, 0.5)}, BadValue, "low below high"),
    ],
)
def test_estimates_and_weights_that_do_not_exist_are_refused(settings: dict[str, Any], error: type, match: str):
    with pytest.raises(error, match=match):
        toy(**settings)


def test_what_is_logged_of_the_groups():
    model = two_groups()
    model.compute_returns_and_advantages(collected())
    logged = model.logger.name_to_value
    assert logged["rollout/groups"] == 2
    assert logged["rollout/groups_dead"] == 1
    assert logged["rollout/groups_kept"] == 0.5
    assert logged["rollout/returns_mean"] == pytest.approx(1 / 8)
    # Of the group that counts: (0.25 - mean 0.25 of 1, 0, 0, 0) / deviation 0.5.
    assert logged["rollout/advantages_max"] == pytest.approx(1.5, abs=1e-3)
    assert logged["rollout/advantages_min"] == pytest.approx(-0.5, abs=1e-3)


@pytest.mark.parametrize(("gamma", "kept"), [(1.0, 0.0), (0.5, 0.5)])
def test_with_a_discount_a_group_that_is_solved_throughout_has_signal(gamma: float, kept: float):
    model = two_groups(gamma=gamma, advantage="centred")
    model.chunk_buffer.reward_TN.zero_()
    model.chunk_buffer.reward_TN[0, 0] = model.chunk_buffer.reward_TN[1, 1:4] = 1.0
    model.compute_returns_and_advantages(collected())
    assert model.logger.name_to_value["rollout/groups_kept"] == kept
    advantages = [0.0] * 4 if gamma == 1.0 else [0.375, -0.125, -0.125, -0.125]  # scores 1, 1/2, 1/2, 1/2
    assert model.chunk_buffer.advantage_TN[0, [0, 2, 3]].tolist() == [advantages[one] for one in (0, 2, 3)]


def test_score_bounds_drop_groups_with_variance_too():
    model = two_groups(score_bounds=(0.3, 0.9))
    model.compute_returns_and_advantages(collected())
    assert model.logger.name_to_value["rollout/groups_kept"] == 0.0
    assert len(model.chunk_buffer.selected_indices()) == 0
    assert not [name for name in model.logger.name_to_value if "advantages" in name]


def test_a_lost_episode_takes_its_group_with_it():
    model = two_groups()
    model.compute_returns_and_advantages(collected(2))
    assert len(model.chunk_buffer.selected_indices()) == 0


def standing_still(**kwargs: Any) -> GRPO:
    """Nothing it does is a success."""
    model = toy(**kwargs)
    act = model.policy.act

    def stand_still(obs: Any, **given: Any) -> ActionSample:
        sample = act(obs, **given)
        return ActionSample(torch.zeros_like(sample.action_BKA), sample.logprob_BKA, sample.value_B, sample.record)

    model.policy.act = stand_still
    return model


def test_when_no_group_has_variance_nothing_is_learnt_and_it_is_said():
    model = standing_still()
    before = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
    with pytest.warns(UserWarning, match=r"AllGroupsDead.*temperature"):
        model.learn(1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.policy.state_dict().items())


def test_the_last_callback_infos_are_those_of_stable_baselines3():
    seen: list[dict[str, Any]] = []

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            for info, done in zip(self.locals["infos"], self.locals["dones"], strict=True):
                if done:
                    seen.append(info)
                assert done or "episode" not in info
            return True

    toy().learn(1, callback=Look())
    assert len(seen) == 8
    for info in seen:
        assert {"r", "l", "t", "success_once"} <= info["episode"].keys()
        assert info["is_success"] == info["episode"]["success_once"]
        assert info["terminal_observation"]["image"].dtype == np.uint8


def test_environments_without_groups_are_refused():
    with pytest.raises(BadValue, match="group_size=1"):
        GRPO("VLAPolicy", vla_gym.make_vec("Toy-Reach", num_envs=4), policy_kwargs=TINY, device="cpu")


def longer_toy(env_id: str, *, split: str = "train") -> Benchmark:
    benchmark = toy_benchmark("Toy-Reach", split=split)
    tasks = tuple(dataclasses.replace(task, horizon=24) for task in benchmark.tasks)
    return dataclasses.replace(benchmark, id=env_id, tasks=tasks)


@pytest.mark.parametrize("how", ["load", "set_env"])
def test_another_environment_brings_its_own_horizon(how: str, tmp_path):
    model = toy()
    model.learn(1)
    before = model.n_steps
    envs = vla_gym.make_vec(longer_toy("Long-Toy"), num_envs=8, chunk=3, group_size=4, seed=9)
    if how == "load":
        model.save(tmp_path / "model")
        model = GRPO.load(tmp_path / "model", env=envs, device="cpu")
        model.set_logger(Logger(None, []))
    else:
        model.set_env(envs.as_sb3())
    assert model.n_steps == model.chunk_buffer.buffer_size == 8 > before
    model.learn(1, reset_num_timesteps=False)


def test_episodes_of_further_rounds_count_towards_the_refusal():
    model = standing_still(resample_dead_groups=2)
    model.max_barren_episodes = 3 * model.env.num_envs
    with pytest.raises(NothingToLearn, match=f"in {3 * model.env.num_envs} episodes"):
        model.learn(1, reset_num_timesteps=False)


@pytest.mark.parametrize(
    ("loss_weight", "level", "losers", "winner"),
    [
        # Three losers of 4 decisions x 6 tokens, a winner of 4 tokens: 76 of them in 13 decisions.
        ("token", "token", 24 / 76, 4 / 76),
        ("constant", "token", 1 / 4, 4 / 24 / 4),
        # 13 chunks, of which a whole episode has 4.
        ("token", "sequence", 4 / 13, 1 / 13),
        ("constant", "chunk", 1 / 4, 1 / 4 / 4),
        ("trajectory", "sequence", 1 / 4, 1 / 4),
    ],
)
def test_what_an_episode_weighs(loss_weight: str, level: str, losers: float, winner: float):
    model = two_groups(loss_weight=loss_weight, logprob_level=level)
    model.compute_returns_and_advantages(collected())
    buffer = model.chunk_buffer
    weight_N = (buffer.element_scale_TN * buffer.elements_TN(model.logprob_level)).sum(dim=0) / 13
    assert weight_N.tolist() == pytest.approx([losers, winner, losers, losers] + [0.0] * 4)
