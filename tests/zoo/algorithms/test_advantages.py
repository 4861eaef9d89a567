"""Numbers worked out by hand; the golden k-of-8 ones are those of the published estimator."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from zoo.algorithms.advantages import gae, group_advantage, live_groups, normalize


def column(*values: float) -> Tensor:
    return torch.tensor(values)[:, None]


def one_slot(
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
    assert one_slot([1], [2], last_value=6) == [2]


def test_lambda_adds_up_the_deltas():
    # delta_2 = 4 + 0.5 * 2 - 1 = 4;  delta_1 = 0 + 0.5 * 1 - 3 = -2.5, plus 0.5 * 0.5 * 4 = 1
    assert one_slot([0, 4], [3, 1], last_value=2, gae_lambda=0.5) == [-1.5, 4]


def test_lambda_zero_is_one_step_temporal_difference():
    assert one_slot([0, 4], [3, 1], last_value=2, gae_lambda=0.0) == [-2.5, 4]


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
    assert one_slot([1, 1, 1], [0, 0, 0], terminated=(done_at,), last_value=8) == expected


def test_a_truncated_decision_bootstraps_with_its_own_last_observation():
    # 1 + 0.5 * 4 - 2 = 1; the row after it (value 100) begins another episode and does not count.
    assert one_slot([1, 0], [2, 100], truncated=(0,), final_value={0: 4}, last_value=0)[0] == 1


def test_a_truncation_at_the_last_row_ignores_the_value_that_follows():
    assert one_slot([1], [2], truncated=(0,), final_value={0: 4}, last_value=1000) == [1]


def test_termination_wins_over_truncation():
    assert one_slot([1], [2], terminated=(0,), truncated=(0,), final_value={0: 4}) == [-1]


def test_slots_do_not_mix():
    both = gae(
        torch.tensor([[1.0, 0.0], [0.0, 3.0]]),
        torch.zeros(2, 2),
        terminated_TN=torch.tensor([[True, False], [False, False]]),
        truncated_TN=torch.zeros(2, 2, dtype=torch.bool),
        final_value_TN=torch.zeros(2, 2),
        last_value_N=torch.tensor([2.0, 0.0]),
        gamma=0.5,
        gae_lambda=1.0,
    )
    assert both.tolist() == [[1.0, 1.5], [1.0, 3.0]]


def test_gae_agrees_with_stable_baselines3_on_random_data():
    import numpy as np
    from gymnasium import spaces
    from stable_baselines3.common.buffers import RolloutBuffer

    rng = np.random.default_rng(0)
    steps, slots = 12, 3
    box = spaces.Box(-1, 1, (1,), np.float32)
    theirs = RolloutBuffer(steps, box, box, device="cpu", gae_lambda=0.9, gamma=0.97, n_envs=slots)
    reward, value = (rng.normal(size=(steps, slots)).astype(np.float32) for _ in range(2))
    done = rng.random((steps, slots)) < 0.3
    last = rng.normal(size=slots).astype(np.float32)
    starts = np.vstack([np.ones((1, slots)), done[:-1]])
    theirs.rewards, theirs.values, theirs.episode_starts = reward, value, starts.astype(np.float32)
    theirs.compute_returns_and_advantage(torch.from_numpy(last), done[-1])
    ours = gae(
        torch.from_numpy(reward),
        torch.from_numpy(value),
        terminated_TN=torch.from_numpy(done),
        truncated_TN=torch.zeros(steps, slots, dtype=torch.bool),
        final_value_TN=torch.zeros(steps, slots),
        last_value_N=torch.from_numpy(last),
        gamma=0.97,
        gae_lambda=0.9,
    )
    torch.testing.assert_close(ours, torch.from_numpy(theirs.advantages), atol=1e-5, rtol=0)


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="value_TN"):
        gae(
            torch.zeros(2, 3),
            torch.zeros(3, 2),
            terminated_TN=torch.zeros(2, 3, dtype=torch.bool),
            truncated_TN=torch.zeros(2, 3, dtype=torch.bool),
            final_value_TN=torch.zeros(2, 3),
            last_value_N=torch.zeros(3),
            gamma=1.0,
            gae_lambda=1.0,
        )


@pytest.mark.parametrize(
    ("successes", "winner", "loser"),
    [(1, 2.475, -0.354), (3, 1.208, -0.725), (4, 0.935, -0.935), (7, 0.354, -2.475)],
)
@pytest.mark.parametrize("reward", [1.0, 5.0])
def test_published_advantages_of_k_successes_in_eight(
    successes: int, winner: float, loser: float, reward: float
):
    score_PG = torch.tensor([[reward] * successes + [0.0] * (8 - successes)])
    advantage_PG = group_advantage(score_PG)
    assert advantage_PG[0, 0].item() == pytest.approx(winner, abs=6e-4)
    assert advantage_PG[0, -1].item() == pytest.approx(loser, abs=6e-4)


def test_groups_are_judged_by_themselves():
    score_PG = torch.tensor([[0.0, 2.0], [10.0, 14.0]])
    # Unbiased std of {0, 2} is sqrt(2), of {10, 14} sqrt(8): both give +-1/sqrt(2).
    torch.testing.assert_close(
        group_advantage(score_PG), torch.tensor([[-1.0, 1.0], [-1.0, 1.0]]) / math.sqrt(2), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("score", [0.0, 1.0, 0.1])
def test_a_dead_group_has_exactly_zero_advantage(score: float):
    assert group_advantage(torch.full((1, 3), score)).tolist() == [[0.0, 0.0, 0.0]]


def test_a_group_needs_two_members():
    with pytest.raises(ValueError, match="group >= 2"):
        group_advantage(torch.zeros(3, 1))


def test_live_groups_are_those_with_winners_and_losers():
    score_PG = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    assert live_groups(score_PG).tolist() == [False, True, False]


def test_bounds_drop_groups_by_their_mean_score():
    # Of eight with reward 5: 1 success has mean 0.625, 2 have 1.25, 7 have 4.375.
    score_PG = torch.tensor([[5.0] * k + [0.0] * (8 - k) for k in (0, 1, 2, 7, 8)])
    assert live_groups(score_PG, (0.5, 4.5)).tolist() == [False, True, True, True, False]
    assert live_groups(score_PG, (0.1, 1.0)).tolist() == [False, True, False, False, False]


def test_normalize_is_zero_mean_and_unit_spread():
    x = torch.tensor([1.0, 2.0, 3.0])
    assert normalize(x, 2.0, 1.0, eps=0.0).tolist() == [-1.0, 0.0, 1.0]
