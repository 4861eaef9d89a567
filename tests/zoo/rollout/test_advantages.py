"""Numbers worked out by hand; the golden k-of-8 ones are those of the published estimator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.logger import Logger

import vla_gym
from tests.zoo.algorithms.test_ppo import SCRIPTS
from tests.zoo.stand_ins import Rows, StandInPolicy, scripted_envs
from vla_gym.errors import BadValue, UnknownName
from zoo import PPO
from zoo.config.algorithm_configs import GroupAdvantage
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.advantages import (
    discounted_sum,
    group_advantage,
    groups_with_signal,
    write_loss_weights,
)
from zoo.rollout.buffer import ChunkRolloutBuffer


@pytest.mark.parametrize(
    ("successes", "winner", "loser"),
    [(1, 2.475, -0.354), (3, 1.208, -0.725), (4, 0.935, -0.935), (7, 0.354, -2.475)],
)
@pytest.mark.parametrize("reward", [1.0, 5.0])
def test_published_advantages_of_k_successes_in_eight(successes: int, winner: float, loser: float, reward: float):
    score_PG = torch.tensor([[reward] * successes + [0.0] * (8 - successes)])
    advantage_PG = group_advantage(score_PG)
    assert advantage_PG[0, 0].item() == pytest.approx(winner, abs=6e-4)
    assert advantage_PG[0, -1].item() == pytest.approx(loser, abs=6e-4)


def test_a_reward_is_discounted_by_the_decisions_before_it():
    reward_TN = torch.tensor([[1.0, 0.0, 4.0], [0.0, 0.0, 0.0], [0.0, 1.0, 8.0]])
    assert discounted_sum(reward_TN, 0.5).tolist() == [1.0, 0.25, 6.0]
    assert discounted_sum(reward_TN, 1.0).tolist() == [1.0, 1.0, 12.0]
    assert discounted_sum(reward_TN, 0.0).tolist() == [1.0, 0.0, 4.0]


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        # Scores 1, 0, 0, 0: mean 1/4, unbiased standard deviation 1/2; the others' means are 0 and 1/3.
        ("group_std", [1.5, -0.5, -0.5, -0.5]),
        ("centred", [0.75, -0.25, -0.25, -0.25]),
        ("rloo", [1.0, -1 / 3, -1 / 3, -1 / 3]),
    ],
)
def test_estimates_of_the_same_group(estimator: GroupAdvantage, expected: list[float]):
    scores_PG = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0] * 4])
    solved, alike = group_advantage(scores_PG, estimator).tolist()
    assert solved == pytest.approx(expected, abs=1e-5)
    assert alike == [0.0] * 4


def test_bounds_drop_groups_by_their_mean_score():
    # Of eight with reward 5: 1 success has mean 0.625, 2 have 1.25, 7 have 4.375.
    score_PG = torch.tensor([[5.0] * k + [0.0] * (8 - k) for k in (0, 1, 2, 7, 8)])
    assert groups_with_signal(score_PG, (0.5, 4.5)).tolist() == [False, True, True, True, False]
    assert groups_with_signal(score_PG, (0.1, 1.0)).tolist() == [False, True, False, False, False]


def scripted(**kwargs: Any) -> PPO:
    settings = {
        "n_steps": 3, "batch_size": 6, "n_epochs": 1, "gamma": 0.5, "gae_lambda": 1.0, "learning_rate": 0.01,
        "device": "cpu", "seed": 0, "normalize_advantage": False, "reward_level": "action", **kwargs,
    }  # fmt: skip
    model = PPO(StandInPolicy, scripted_envs(SCRIPTS), **settings)
    model.set_logger(Logger(None, [Rows()]))
    return model


def test_steps_of_a_scripted_rollout_by_hand():
    model = scripted()
    model.learn(1)
    buffer = model.chunk_buffer
    # Sub-environment 1 is paid 2 in its eighth step; each step before is worth half, less the chunk's value 0, 1, 2.
    expected = [[2**-6, 2**-5, 2**-4], [2**-3 - 1, 2**-2 - 1, 2**-1 - 1], [1 - 2, 2 - 2, 0]]
    assert buffer.step_advantage_TNK[:, 1].tolist() == expected
    assert buffer.return_TN[:, 1].tolist() == [2**-6, 2**-3, 1]


def test_step_advantages_are_normalised_over_executed_steps():
    model = scripted(normalize_advantage=True)
    model.learn(1)
    executed = model.chunk_buffer.step_advantage_TNK[model.chunk_buffer.executed_steps()]
    assert len(executed) == 15
    assert executed.mean().item() == pytest.approx(0, abs=1e-6)
    assert executed.std().item() == pytest.approx(1, abs=1e-5)


def oft(outputs: int, **kwargs: Any) -> PPO:
    envs = vla_gym.make_vec("Toy-Reach", num_envs=2, chunk=4, seed=0)
    options = {"size": "tiny", "value_outputs": outputs}
    model = PPO(
        "VLAPolicy", envs, n_steps=3, batch_size=6, n_epochs=1, seed=0, device="cpu", learning_rate=1e-3,
        policy_kwargs={"backbone": "openvla-oft", "backbone_kwargs": options},
        **{"reward_level": "action", "value_level": "action", **kwargs},
    )  # fmt: skip
    model.set_logger(Logger(None, [Rows()]))
    return model


@pytest.mark.filterwarnings("ignore::zoo.algorithms.training_warnings.TrainingWarning")
def test_openvla_oft_values_every_step():
    model = oft(4)
    before = model.policy.backbone.value_head.mlp[4].weight.detach().clone()
    model.learn(1)
    buffer = model.chunk_buffer
    assert buffer.step_value_TNK.shape == (3, 2, 4)
    assert torch.equal(buffer.step_value_TNK[..., 0], buffer.value_TN)
    # Every output has learnt: the targets are those of its own step.
    assert ((model.policy.backbone.value_head.mlp[4].weight - before).abs().amax(dim=1) > 0).all()
    batch = next(iter(next(iter(model.rollout_data().minibatches(0))))).batch
    assert batch.return_BU.shape == (6, 4)
    assert batch.value_weight_BU.sum().item() == pytest.approx(6)
    assert model.logger.output_formats[0].rows[-1]["train/actor/ratio_first_gap"] == pytest.approx(0, abs=1e-5)


def test_one_output_cannot_value_every_step():
    with pytest.raises(BadValue, match="value_outputs"):
        oft(1)


def three_episodes() -> ChunkRolloutBuffer:
    """Column 0: an episode of two decisions (two steps and one), then one under way; column 1: one of one decision."""
    buffer = ChunkRolloutBuffer(3, spaces.Dict(), spaces.Box(-1, 1, (2, 1)), n_envs=2)
    buffer.logprob_TNKA = torch.zeros(3, 2, 2, 1)
    buffer.executed_TN.copy_(torch.tensor([[2, 2], [1, 0], [2, 0]]))
    buffer.terminated_TN[0, 1] = buffer.truncated_TN[1, 0] = True
    return buffer


@pytest.mark.parametrize(("masked", "places"), [(False, 4), (True, 6)])
def test_episodes_of_a_rollout_weigh_the_same_for_policy_and_critic(masked: bool, places: int) -> None:
    buffer = three_episodes()
    write_loss_weights(buffer, buffer.executed_TN > 0, "action", "trajectory", ProcessGroup(), masked=masked)
    # Three episodes of three, two and two steps; of two, one and one values.
    expected = torch.tensor([[1 / 9, 1 / 6], [1 / 9, 0], [1 / 6, 0]]) * places
    torch.testing.assert_close(buffer.element_scale_TN, expected)
    expected = torch.tensor([[1 / 6, 1 / 3], [1 / 6, 0], [1 / 3, 0]]) * places
    torch.testing.assert_close(buffer.value_scale_TN, expected)


def test_values_of_steps_weigh_the_same_in_every_episode() -> None:
    buffer = three_episodes()
    buffer.step_return_TNK = torch.zeros(3, 2, 2)
    write_loss_weights(buffer, buffer.executed_TN > 0, "action", "decision", ProcessGroup())
    # Four decisions of seven steps.
    assert buffer.value_scale_TN.unique().tolist() == pytest.approx([4 / 7])
    write_loss_weights(buffer, buffer.executed_TN > 0, "token", "trajectory", ProcessGroup())
    torch.testing.assert_close(buffer.value_scale_TN, torch.tensor([[4 / 9, 4 / 6], [4 / 9, 0], [4 / 6, 0]]))


@pytest.mark.parametrize(
    ("kwargs", "error", "match"),
    [
        ({"reward_level": "step"}, UnknownName, "action"),
        ({"value_level": "token"}, UnknownName, "action"),
        ({"reward_level": "chunk", "value_level": "action"}, BadValue, "reward_level='action' too"),
        ({"logprob_level": "chunk"}, BadValue, "one ratio"),
        ({"logprob_level": "sequence"}, BadValue, "one ratio"),
    ],
)
def test_levels_that_do_not_go_together_are_refused(kwargs: dict[str, Any], error: type, match: str):
    with pytest.raises(error, match=match):
        scripted(**kwargs)
