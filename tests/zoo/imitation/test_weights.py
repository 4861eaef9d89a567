"""Returns, advantages and weights, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.zoo.imitation.test_loss import shown
from vla_gym.errors import BadValue
from zoo.demonstrations.recorder import REWARD, SUCCESS, Demonstration
from zoo.imitation.weights import NothingToWeigh, advantage_weights, advantages_of, discounted_returns, weighed


def played(*rewards: float, task: str = "reach") -> Demonstration:
    """An episode with these rewards, solved where one is above 0."""
    reward_T = np.array(rewards, dtype=np.float32)
    return replace(shown(len(rewards), task), extra={REWARD: reward_T, SUCCESS: reward_T > 0})


def test_an_advantage_is_over_the_tasks_mean_at_the_step_where_ended_episodes_count_with_their_last() -> None:
    returns = [np.array([1.0, 1.0]), np.array([0.5, 0.0, 0.0]), np.array([7.0])]
    first, second, alone = advantages_of(returns, ["reach", "reach", "push"])
    # Means of reach: 0.75, 0.5, and at the third step 0.5, for the solved episode counts with 1.
    assert first.tolist() == [0.25, 0.5]
    assert second.tolist() == [-0.25, -0.5, -0.5]
    assert alone.tolist() == [0.0]


def test_weights_are_exponential_in_normalised_advantages_and_have_a_mean_of_1() -> None:
    # Mean 3, deviation 2: normalised to 1 and -1.
    for beta in (1.0, 0.5):
        up, down = math.exp(1 / beta), math.exp(-1 / beta)
        expected = [2 * up / (up + down), 2 * down / (up + down)]
        assert advantage_weights(np.array([5.0, 1.0]), beta) == pytest.approx(expected, rel=1e-4)
    assert advantage_weights(np.array([0.3, 0.3, 0.3]), 1.0).tolist() == [1.0, 1.0, 1.0]


def test_a_weight_is_at_most_20_before_it_is_divided_by_the_mean() -> None:
    # One of 101 frames: normalised to 10 and -0.1.
    weight_F = advantage_weights(np.array([1.0, *[0.0] * 100]), 1.0)
    assert weight_F[0] / weight_F[1] == pytest.approx(20.0 / math.exp(-0.1), rel=1e-3)
    assert weight_F.mean() == pytest.approx(1.0)
    assert np.isfinite(advantage_weights(np.array([1.0, -1.0]), 1e-6)).all()


def test_success_keeps_solved_episodes_and_weighs_them_alike() -> None:
    episodes = [played(0, 1), played(0, 0, 0), played(1, 0)]
    learned, weights = weighed(episodes, "success", beta=1.0, gamma=0.9)
    assert (learned, weights) == ([episodes[0], episodes[2]], None)
    assert weighed(episodes, "none", beta=1.0, gamma=0.9) == (episodes, None)
    with pytest.raises(BadValue, match="none of the 1 episodes was solved"):
        weighed(episodes[1:2], "success", beta=1.0, gamma=0.9)


def test_advantage_weighs_every_frame_of_every_episode() -> None:
    episodes = [played(0, 1), played(0, 0)]
    learned, weights = weighed(episodes, "advantage", beta=2.0, gamma=0.5)
    # Returns (0.5, 1) and (0, 0), so advantages (0.25, 0.5) and (-0.25, -0.5): mean 0, variance 0.15625.
    scaled = np.array([0.25, 0.5, -0.25, -0.5]) / math.sqrt(0.15625) / 2
    expected = np.exp(scaled) / np.exp(scaled).mean()
    assert learned == episodes
    assert weights is not None
    assert [len(weight_T) for weight_T in weights] == [2, 2]
    assert np.concatenate(weights) == pytest.approx(expected, rel=1e-3)


def test_without_rewards_the_first_success_is_worth_1() -> None:
    solved_T = np.array([False, True, True])
    paid = replace(played(0, 1, 0), extra={REWARD: np.array([0.0, 1.0, 0.0])})
    found = []
    for episode in (replace(paid, extra={SUCCESS: solved_T}), paid):
        _, weights = weighed([episode, played(0, 0)], "advantage", beta=1.0, gamma=0.9)
        assert weights is not None
        found.append(np.concatenate(weights).tolist())
    assert found[0] == found[1]


def test_rewards_that_tell_no_frame_apart_are_refused() -> None:
    for episodes in (
        [played(0.0, 0.0), played(0.0, 0.0, 0.0)],  # no reward at all
        [played(0.0, 1.0, task="reach"), played(0.0, 0.0, task="push")],  # one episode a sentence is its own mean
    ):
        with pytest.raises(NothingToWeigh, match="the rewards of the 2 episodes tell no frame apart"):
            weighed(episodes, "advantage", beta=1.0, gamma=0.99)


def test_a_return_is_the_discounted_sum_to_the_end() -> None:
    assert discounted_returns(np.array([0.0, 2.0, 1.0]), 0.5).tolist() == [1.25, 2.5, 1.0]
    assert discounted_returns(np.array([0.0, 2.0, 1.0]), 0.0).tolist() == [0.0, 2.0, 1.0]
