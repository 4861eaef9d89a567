"""Numbers worked out by hand; the golden k-of-8 ones are those of the published estimator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.logger import Logger
from torch import Tensor

import vla_gym
from tests.zoo.algorithms import test_ppo
from tests.zoo.stand_ins import Rows
from vla_gym.errors import BadValue, UnknownName
from zoo import PPO
from zoo.config.algorithm_configs import GroupAdvantage
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.advantages import (
    discounted_sum,
    gae,
    group_advantage,
    groups_with_signal,
    step_gae,
    write_loss_weights,
)
from zoo.rollout.buffer import ChunkRolloutBuffer


@pytest.mark.parametrize(
    ("successes", "winner", "loser"), [(1, 2.475, -0.354), (3, 1.208, -0.725), (4, 0.935, -0.935), (7, 0.354, -2.475)]
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
    return test_ppo.scripted(**{"batch_size": 6, "normalize_advantage": False, "reward_level": "action", **kwargs})


def test_steps_of_a_scripted_rollout_by_hand():
    model = scripted()
    model.learn(1)
    buffer = model.chunk_buffer
    # Sub-environment 1 is paid 2 in its eighth step; each step before is worth half, less the chunk's value 0, 1, 2.
    expected = [[2**-6, 2**-5, 2**-4], [2**-3 - 1, 2**-2 - 1, 2**-1 - 1], [1 - 2, 2 - 2, 0]]
    assert buffer.step_advantage_TNK[:, 1].tolist() == expected
    assert buffer.return_TN[:, 1].tolist() == [2**-6, 2**-3, 1]


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


@pytest.mark.filterwarnings("ignore::zoo.algorithms.update_metrics.TrainingWarning")
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


def column(*values: float) -> Tensor:
    return torch.tensor(values)[:, None]


def one_env(
    reward: list[float],
    value: list[float],
    *,
    terminated: tuple[int, ...] = (),
    truncated: tuple[int, ...] = (),
    final_value: dict[int, float] | None = None,
    last_value: float = 0.0,
    gamma: float = 0.5,
    gae_lambda: float = 1.0,
) -> list[float]:
    steps = len(reward)
    final = [(final_value or {}).get(t, math.nan) for t in range(steps)]
    advantage_TN = gae(
        column(*reward),
        column(*value),
        terminated_TN=torch.tensor([[t in terminated] for t in range(steps)]),
        truncated_TN=torch.tensor([[t in truncated] for t in range(steps)]),
        final_value_TN=column(*final),
        last_value_N=torch.tensor([last_value]),
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    return advantage_TN[:, 0].tolist()


def test_the_last_row_bootstraps_with_the_value_that_follows():
    # delta = 1 + 0.5 * 6 - 2 = 2
    assert one_env([1], [2], last_value=6) == [2]


def test_lambda_adds_up_the_deltas():
    # delta_2 = 4 + 0.5 * 2 - 1 = 4;  delta_1 = 0 + 0.5 * 1 - 3 = -2.5, plus 0.5 * 0.5 * 4 = 1
    assert one_env([0, 4], [3, 1], last_value=2, gae_lambda=0.5) == [-1.5, 4]


@pytest.mark.parametrize(
    ("done_at", "expected"),
    [
        # Rewards 1, 1, 1; values 0; last value 8; gamma 0.5, lambda 1: returns within each episode.
        (0, [1, 1 + 0.5 * (1 + 0.5 * 8), 1 + 0.5 * 8]),
        (1, [1.5, 1, 1 + 0.5 * 8]),
        (2, [1.75, 1.5, 1]),
    ],
)
def test_nothing_of_the_next_episode_leaks_past_a_termination(done_at: int, expected: list[float]):
    assert one_env([1, 1, 1], [0, 0, 0], terminated=(done_at,), last_value=8) == expected


def test_a_truncated_decision_bootstraps_with_its_own_last_observation():
    # 1 + 0.5 * 4 - 2 = 1; the row after it (value 100) begins another episode and does not count.
    assert one_env([1, 0], [2, 100], truncated=(0,), final_value={0: 4}, last_value=0)[0] == 1


def test_a_truncation_at_the_last_row_ignores_the_value_that_follows():
    assert one_env([1], [2], truncated=(0,), final_value={0: 4}, last_value=1000) == [1]


def test_termination_wins_over_truncation():
    assert one_env([1], [2], terminated=(0,), truncated=(0,), final_value={0: 4}) == [-1]


def test_gae_agrees_with_stable_baselines3_on_random_data():
    from gymnasium import spaces
    from stable_baselines3.common.buffers import RolloutBuffer

    rng = np.random.default_rng(0)
    steps, num_envs = 12, 3
    box = spaces.Box(-1, 1, (1,), np.float32)
    sb3 = RolloutBuffer(steps, box, box, device="cpu", gae_lambda=0.9, gamma=0.97, n_envs=num_envs)
    reward, value = (rng.normal(size=(steps, num_envs)).astype(np.float32) for _ in range(2))
    done = rng.random((steps, num_envs)) < 0.3
    last = rng.normal(size=num_envs).astype(np.float32)
    starts = np.vstack([np.ones((1, num_envs)), done[:-1]])
    sb3.rewards, sb3.values, sb3.episode_starts = reward, value, starts.astype(np.float32)
    sb3.compute_returns_and_advantage(torch.from_numpy(last), done[-1])
    advantage_TN = gae(
        torch.from_numpy(reward),
        torch.from_numpy(value),
        terminated_TN=torch.from_numpy(done),
        truncated_TN=torch.zeros(steps, num_envs, dtype=torch.bool),
        final_value_TN=torch.zeros(steps, num_envs),
        last_value_N=torch.from_numpy(last),
        gamma=0.97,
        gae_lambda=0.9,
    )
    torch.testing.assert_close(advantage_TN, torch.from_numpy(sb3.advantages), atol=1e-5, rtol=0)


def ends(num_decisions: int, num_envs: int, **at: list[tuple[int, int]]) -> dict[str, Tensor]:
    """`terminated_TN` and `truncated_TN`, True at the given (decision, env)."""
    flags = {name: torch.zeros(num_decisions, num_envs, dtype=torch.bool) for name in ("terminated", "truncated")}
    for name, places in at.items():
        for place in places:
            flags[name][place] = True
    return {f"{name}_TN": flag for name, flag in flags.items()}


# One sub-environment: two steps paying 1 and 2 with values 3 and 4, then one step paying 5 with value 6 that ends it.
REWARD = torch.tensor([[[1.0, 2.0]], [[5.0, 0.0]]])
EXECUTED = torch.tensor([[2], [1]])
REST = {
    "executed_TN": EXECUTED,
    "final_value_TN": torch.zeros(2, 1),
    "last_value_N": torch.tensor([100.0]),
    "gamma": 0.5,
    "gae_lambda": 0.5,
    **ends(2, 1, terminated=[(1, 0)]),
}


def test_each_executed_step_is_a_row_of_its_own():
    value_TNK = torch.tensor([[[3.0, 4.0]], [[6.0, 9.0]]])
    # Last: 5 - 6 = -1. Before: 2 + 6 / 2 - 4 = 1, and 1 - 1 / 4. First: 1 + 4 / 2 - 3 = 0, and 0.75 / 4.
    assert step_gae(REWARD, value_TNK, **REST).tolist() == [[[0.1875, 0.75]], [[-1.0, 0.0]]]


def test_one_value_for_a_chunk_leaves_the_rewards_from_each_step_on():
    value_TNK = torch.tensor([[[3.0, 3.0]], [[6.0, 6.0]]])
    # Step 1: 2 + 6 / 2 - 3, and a quarter of -1. Step 0: 1 + 2 / 2 + 6 / 4 - 3, and an eighth of -1.
    advantage = step_gae(REWARD, value_TNK, **REST, lambda_inside=1.0)
    assert advantage.tolist() == [[[0.375, 1.75]], [[-1.0, 0.0]]]


def test_a_truncated_step_bootstraps_and_a_lost_chunk_ends_the_sum():
    rest = {"last_value_N": torch.tensor([100.0]), "gamma": 0.5, "gae_lambda": 1.0}
    truncated = step_gae(
        torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[2.0, 0.0]]]), executed_TN=torch.tensor([[1]]),
        final_value_TN=torch.tensor([[4.0]]), **rest, **ends(1, 1, truncated=[(0, 0)]),
    )  # fmt: skip
    assert truncated.tolist() == [[[1.0, 0.0]]]
    lost = step_gae(
        torch.tensor([[[1.0, 0.0]], [[0.0, 0.0]]]), torch.tensor([[[2.0, 0.0]], [[8.0, 0.0]]]),
        executed_TN=torch.tensor([[1], [0]]), final_value_TN=torch.zeros(2, 1), **rest,
        **ends(2, 1, truncated=[(1, 0)]),
    )  # fmt: skip
    # 1 + 8 / 2 - 2, and nothing of what was never run.
    assert lost.tolist() == [[[3.0, 0.0]], [[0.0, 0.0]]]


def random_rollout(num_decisions: int, num_envs: int, chunk: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    terminated = draw(num_decisions, num_envs) < 0.2
    return {
        "reward_TNK": draw(num_decisions, num_envs, chunk),
        "value_TNK": draw(num_decisions, num_envs, chunk),
        "terminated_TN": terminated,
        "truncated_TN": (draw(num_decisions, num_envs) < 0.2) & ~terminated,
        "final_value_TN": draw(num_decisions, num_envs),
        "last_value_N": draw(num_envs),
    }


def chunk_level(rollout: dict[str, Tensor], reward_TN: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    rest = {name: tensor for name, tensor in rollout.items() if name not in ("reward_TNK", "value_TNK")}
    return gae(reward_TN, rollout["value_TNK"][..., 0], gamma=gamma, gae_lambda=gae_lambda, **rest)


def test_chunks_of_one_step_are_credited_alike():
    rollout = random_rollout(6, 3, chunk=1)
    fine = step_gae(**rollout, executed_TN=torch.ones(6, 3, dtype=torch.int64), gamma=0.9, gae_lambda=0.8)
    torch.testing.assert_close(fine[..., 0], chunk_level(rollout, rollout["reward_TNK"][..., 0], 0.9, 0.8))
