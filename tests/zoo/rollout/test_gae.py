"""Advantage estimates worked out by hand, of decisions and of the steps of their chunks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from zoo.rollout.advantages import gae, step_gae


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


def test_lambda_zero_is_one_step_temporal_difference():
    assert one_env([0, 4], [3, 1], last_value=2, gae_lambda=0.0) == [-2.5, 4]


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


@pytest.mark.parametrize("lambda_inside", [None, 1.0])
def test_undiscounted_the_first_step_gets_what_its_chunk_gets(lambda_inside: float | None):
    """gamma = lambda = 1: both are the sum of all rewards to come, less the value."""
    rollout = random_rollout(6, 3, chunk=4)
    executed_TN = torch.randint(1, 5, (6, 3), generator=torch.Generator().manual_seed(2))
    ran_TNK = torch.arange(4) < executed_TN[..., None]
    rollout["reward_TNK"] = rollout["reward_TNK"] * ran_TNK
    fine = step_gae(**rollout, executed_TN=executed_TN, gamma=1.0, gae_lambda=1.0, lambda_inside=lambda_inside)
    torch.testing.assert_close(fine[..., 0], chunk_level(rollout, rollout["reward_TNK"].sum(-1), 1.0, 1.0))
    assert (fine[~ran_TNK] == 0).all()
