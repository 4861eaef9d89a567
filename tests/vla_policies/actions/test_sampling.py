from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from vla_gym.errors import BadValue
from vla_policies.actions.noise import Noise
from vla_policies.actions.sampling import ActionTokenDistribution, Sampling, TableBins, UniformBins, token_log_probs

CODEC = UniformBins(4)


def logits(*values: float) -> torch.Tensor:
    return torch.tensor(values).view(1, 1, 1, -1)


def probs(*values: float) -> torch.Tensor:
    return logits(*values).log()


def distribution(logits_BKAV: torch.Tensor, **settings: float) -> ActionTokenDistribution:
    return ActionTokenDistribution(token_log_probs(logits_BKAV, Sampling(**settings)), CODEC)  # type: ignore[arg-type]


def test_log_prob_and_entropy_by_hand() -> None:
    # p = 1/2, 1/4, 1/8, 1/8: H = (1/2) 1 + (1/4) 2 + 2 (1/8) 3 = 1.75 bits
    dist = distribution(probs(0.5, 0.25, 0.125, 0.125))
    assert dist.token_log_prob(torch.tensor([[[1]]])).item() == pytest.approx(math.log(0.25))
    assert dist.token_entropy().item() == pytest.approx(1.75 * math.log(2))


def test_temperature_divides_the_logits() -> None:
    # p ~ 1, 1/4 at temperature 2 becomes 1, 1/2: 2/3 and 1/3
    dist = distribution(logits(0.0, math.log(0.25), -math.inf, -math.inf), temperature=2.0)
    assert dist.log_probs_BKAV.exp().flatten().tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0])


def test_draws_follow_the_probabilities_and_the_seed() -> None:
    torch.manual_seed(0)
    dist = distribution(probs(0.5, 0.25, 0.125, 0.125).expand(20_000, 1, 1, 4))
    token = dist.draw()
    share = torch.bincount(token.flatten(), minlength=4) / token.numel()
    assert share.tolist() == pytest.approx([0.5, 0.25, 0.125, 0.125], abs=0.015)
    torch.manual_seed(0)
    assert torch.equal(dist.draw(), token)


class Given(Noise):
    """Hands out the numbers it was given."""

    def __init__(self, *uniform: float) -> None:
        self.uniform_B = torch.tensor(uniform, dtype=torch.float64)

    def uniform(self, *shape: int, device: torch.device) -> torch.Tensor:
        return self.uniform_B.reshape(shape)

    def normal(self, *shape: int, device: torch.device) -> torch.Tensor:
        raise AssertionError("tokens take uniform numbers")


def test_a_number_picks_the_token_whose_interval_holds_it() -> None:
    # Token 0 has [0, 1/4), token 1 is forbidden, token 2 has [1/4, 3/4), token 3 the rest.
    allowed = torch.tensor([True, False, True, True])
    raw = probs(0.25, 9.0, 0.5, 0.25).expand(5, 1, 1, 4)
    dist = ActionTokenDistribution(token_log_probs(raw.masked_fill(~allowed, -torch.inf), Sampling()), CODEC)
    token = dist.draw(noise=Given(0.0, 0.24, 0.26, 0.74, 1.0 - 2.0**-53))
    assert token.flatten().tolist() == [0, 0, 2, 2, 3]


def test_the_mean_may_be_what_is_deterministic() -> None:
    # Tokens 0 and 3 in two dims: means 0.4 * 3 = 1.2 and 0.6 * 3 = 1.8 lie nearest tokens 1 and 2.
    raw = torch.stack([probs(0.6, 0.0, 0.0, 0.4), probs(0.4, 0.0, 0.0, 0.6)], dim=2)[..., 0, :]
    likeliest = ActionTokenDistribution(token_log_probs(raw, Sampling()), CODEC)
    assert likeliest.draw(deterministic=True).tolist() == [[[0, 3]]]
    mean = ActionTokenDistribution(token_log_probs(raw, Sampling()), CODEC, greedy="mean")
    assert mean.draw(deterministic=True).tolist() == [[[1, 2]]]
    assert mean.mode().tolist() == [[[-0.25, 0.25]]]
    # At a temperature of 1/2, 0.6 : 0.4 becomes 9 : 4, and the means 3 * 4 / 13 = 0.92 and 3 * 9 / 13 = 2.08.
    sharper = mean.proba_distribution(raw, Sampling(temperature=0.5, greedy="mean"))
    assert sharper.draw(deterministic=True).tolist() == [[[1, 2]]]
    assert set(mean.draw().flatten().tolist()) <= {0, 3}


def test_sb3_words_sum_over_the_chunk() -> None:
    dist = distribution(torch.randn(5, 2, 3, 4))
    action = dist.sample()
    token = CODEC.encode(action)
    assert action.shape == (5, 2, 3)
    assert torch.equal(dist.log_prob(action.flatten(1)), dist.token_log_prob(token).sum(dim=(1, 2)))
    assert torch.equal(dist.entropy(), dist.token_entropy().sum(dim=(1, 2)))
    again, log_prob = dist.log_prob_from_params(torch.randn(5, 2, 3, 4), Sampling())
    assert torch.equal(log_prob, dist.log_prob(again))


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": -1.0}, {"top_k": -1}])
def test_impossible_settings_raise(settings: dict[str, float]) -> None:
    with pytest.raises(BadValue, match="must be"):
        Sampling(**settings)  # type: ignore[arg-type]


def test_every_token_survives_float32_both_ways() -> None:
    codec = UniformBins()
    token = torch.arange(256)
    action = codec.decode(token)
    assert action.dtype == torch.float32
    assert torch.equal(codec.encode(action), token)
    # Through a NumPy buffer and a clip, as Stable-Baselines3 stores actions.
    stored = np.clip(action.numpy().astype(np.float32), -1.0, 1.0)
    assert torch.equal(codec.encode(torch.from_numpy(stored)), token)
    assert torch.equal(codec.decode(codec.encode(action)), action)


@pytest.mark.parametrize(("token", "action"), [(0, -255 / 256), (127, -1 / 256), (128, 1 / 256), (255, 255 / 256)])
def test_centres_by_hand(token: int, action: float) -> None:
    assert UniformBins().decode(torch.tensor(token)).item() == action


def test_a_table_tells_twins_apart_and_finds_every_token_again() -> None:
    # Dim 0: an ordinary row with equal ends; dim 1: a gripper that knows two numbers; dim 2: never moves.
    ordinary = np.linspace(0.9, -0.9, 256)
    ordinary[1] = ordinary[0]
    value_AV = np.stack([ordinary, np.repeat([-1.0, 1.0], 128), np.zeros(256)])
    codec = TableBins(value_AV)
    token = torch.arange(256)[:, None].expand(256, 3)
    action = codec.decode(token)
    assert action.dtype == torch.float32
    assert torch.equal(codec.encode(action), token)
    stored = np.clip(action.numpy(), -1.0, 1.0)
    assert torch.equal(codec.encode(torch.from_numpy(stored)), token)
    assert np.abs(action.double().numpy() - value_AV.T).max() < 1e-5


def test_of_twins_the_nearest_to_the_data_is_the_numbers_token() -> None:
    codec = TableBins(np.array([[-1.0, -1.0, -1.0, 1.0, 1.0]]), np.array([[2.0, 0.5, 1.0, 3.0, 3.0]]))
    assert codec.encode(torch.tensor([[-1.0], [1.0]])).tolist() == [[1], [3]]
    # float32 knows numbers 2^-24 apart below 1: none, two and one step towards zero; of equals the first stays.
    steps = torch.tensor([2.0, 0.0, 1.0, 0.0, 1.0]) * 2.0**-24
    token = torch.arange(5)[:, None]
    assert torch.equal(1.0 - codec.decode(token)[:, 0].abs(), steps)
    assert torch.equal(codec.encode(codec.decode(token)), token)
