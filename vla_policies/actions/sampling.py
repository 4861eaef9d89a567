"""Logits -> distribution over action tokens: the only place, used while collecting and while updating; and what a token
means in environment units.

The order: allowed-token mask, temperature, top-k, fp32 log-softmax. Because `act` and `evaluate`
both call `token_log_probs` and `ActionTokenDistribution`, a decision scored again by the
weights that made it has a probability ratio of exactly 1.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from stable_baselines3.common.distributions import Distribution
from torch import Tensor, nn

from vla_gym.errors import BadValue
from vla_policies.actions.noise import TORCH_NOISE, Noise

Greedy = Literal["likeliest", "mean"]
"""The token of deterministic actions."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Settings of token sampling."""

    temperature: float = 1.0
    """Logits are divided by this, > 0."""
    top_k: int = 0
    """Only the k likeliest tokens may be drawn; 0 allows all. A token that has left the top k since it
    was drawn scores -inf, so keep 0 for training unless the policy hardly moves between updates."""
    greedy: Greedy = "likeliest"
    """Deterministic actions: the "likeliest" token, or the one nearest the "mean". Sampled movements add up to their
    average, which the likeliest of a skewed distribution may be far from; a gripper that is only open or closed has
    no use for a mean."""

    def __post_init__(self) -> None:
        if not self.temperature > 0 or self.top_k < 0:
            raise BadValue(f"temperature must be > 0 and top_k >= 0, got {self.temperature} and {self.top_k}")


def token_log_probs(logits_BKAV: Tensor, sampling: Sampling) -> Tensor:
    """Normalised float32 log-probabilities `[B, K, A, V]` of logits of any float dtype; -inf past the top k."""
    logits_BKAV = logits_BKAV.float()
    if sampling.temperature != 1.0:
        logits_BKAV = logits_BKAV / sampling.temperature
    if 0 < sampling.top_k < logits_BKAV.shape[-1]:
        kth = logits_BKAV.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits_BKAV = logits_BKAV.masked_fill(logits_BKAV < kth, -torch.inf)
    return logits_BKAV.log_softmax(dim=-1)


class ChunkDistribution(Distribution, ABC):
    """Base of distributions over action chunks: SB3's methods that follow from the others."""

    def proba_distribution_net(self, *args: Any, **kwargs: Any) -> nn.Module:
        raise NotImplementedError("the action head is part of the backbone")

    def actions_from_params(self, *args: Any, deterministic: bool = False) -> Tensor:
        return self.proba_distribution(*args).get_actions(deterministic=deterministic)

    def log_prob_from_params(self, *args: Any) -> tuple[Tensor, Tensor]:
        actions = self.actions_from_params(*args)
        return actions, self.log_prob(actions)


class ActionTokenDistribution(ChunkDistribution):
    """B chunks of K x A independent action tokens: `token_*` methods and `draw` in tokens, SB3's in env actions."""

    def __init__(self, log_probs_BKAV: Tensor, codec: ActionCodec, greedy: Greedy = "likeliest") -> None:
        super().__init__()
        self.log_probs_BKAV = log_probs_BKAV
        self.codec = codec
        self.greedy = greedy

    # Tokens -------------------------------------------------------------------------------------

    def draw(self, deterministic: bool = False, noise: Noise = TORCH_NOISE) -> Tensor:
        """Tokens int64 `[B, K, A]`: `greedy` when deterministic, else drawn by one number of `noise` each."""
        if deterministic:
            return self._mean_token() if self.greedy == "mean" else self.log_probs_BKAV.argmax(dim=-1)
        return self.draw_many(1, noise)[0]

    def draw_many(self, num: int, noise: Noise = TORCH_NOISE) -> Tensor:
        """Tokens of `num` chunks for each observation, int64 `[num, B, K, A]`."""
        cumulative_BKAV = self.log_probs_BKAV.detach().double().exp().cumsum(dim=-1)
        batch, *rest, _ = cumulative_BKAV.shape
        uniform_BNKA = noise.uniform(batch, num, *rest, device=cumulative_BKAV.device)
        # The first token whose sum passes the number: one of probability zero never does.
        level_BKAN = (uniform_BNKA.permute(0, 2, 3, 1) * cumulative_BKAV[..., -1:]).contiguous()
        return torch.searchsorted(cumulative_BKAV, level_BKAN, right=True).permute(3, 0, 1, 2)

    def _mean_token(self) -> Tensor:
        """The token nearest the mean; bins are equal and numbered in their order."""
        probs = self.log_probs_BKAV.exp()
        return (probs * torch.arange(self.codec.num_bins, device=probs.device)).sum(dim=-1).round().long()

    def token_log_prob(self, token_BKA: Tensor) -> Tensor:
        """Log-probability of each token, float32 `[B, K, A]`."""
        return self.log_probs_BKAV.gather(-1, token_BKA.long()[..., None])[..., 0]

    def token_entropy(self) -> Tensor:
        """Entropy of each token's distribution, nats, float32 `[B, K, A]`."""
        probs = self.log_probs_BKAV.exp()
        # 0 * -inf would be nan: a forbidden token adds nothing.
        return -(probs * self.log_probs_BKAV.masked_fill(probs == 0, 0.0)).sum(dim=-1)

    # Stable-Baselines3's methods: whole chunks, environment units -----------------------------------

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability of whole chunks of env actions (`[B, K, A]` or flat), float32 `[B]`."""
        token_BKA = self.codec.encode(actions.reshape(self.log_probs_BKAV.shape[:3]))
        return self.token_log_prob(token_BKA).sum(dim=(1, 2))

    def entropy(self) -> Tensor:
        """Entropy of whole chunks, nats, float32 `[B]`."""
        return self.token_entropy().sum(dim=(1, 2))

    def sample(self) -> Tensor:
        """Env actions drawn at random, float32 `[B, K, A]`."""
        return self.codec.decode(self.draw())

    def mode(self) -> Tensor:
        """Env actions of the `greedy` tokens, float32 `[B, K, A]`."""
        return self.codec.decode(self.draw(deterministic=True))

    def proba_distribution(self, logits_BKAV: Tensor, sampling: Sampling) -> Self:
        self.log_probs_BKAV, self.greedy = token_log_probs(logits_BKAV, sampling), sampling.greedy
        return self


class UniformBins:
    """V equal bins over [-1, 1]; token v means the bin's centre.

    With the defaults every centre is a multiple of 1/256, so float32 holds it exactly and
    `encode(decode(token)) == token` for every token: an algorithm that stores only environment
    actions (Stable-Baselines3's PPO) can recover the tokens.
    """

    def __init__(self, num_bins: int = 256) -> None:
        self.num_bins = num_bins

    def decode(self, token: Tensor) -> Tensor:
        """Tokens (any integer dtype, any shape) to bin centres, float32, same shape."""
        return -1.0 + 2.0 / self.num_bins * (token.float() + 0.5)

    def encode(self, action: Tensor) -> Tensor:
        """Actions (any shape) to the token of their bin, int64; values outside go to the end bins."""
        position = (action.float() + 1.0) * (self.num_bins / 2.0)
        return position.floor().long().clamp(0, self.num_bins - 1)

    def centres(self) -> Tensor:
        """All bin centres in token order, float32 `[V]`."""
        return self.decode(torch.arange(self.num_bins))


class TableBins:
    """Tokens whose number differs from dim to dim: a look-up in `value_AV`.

    Several tokens may have the same number (both end bins of OpenVLA, every "open" of a gripper that is only
    open or closed). An algorithm that stores only environment actions must still recover the token, so equal
    tokens differ in the last bits of the float32 number, at most 2e-5 towards zero.

    :param value_AV: each token's number, float64 `[A, V]`, in [-1, 1].
    :param distance_AV: distance of each token from the training data's value for its number, `[A, V]`: of equal
        tokens, the one of the least distance (the first of several) is the number's token. None = all are equal.
    """

    def __init__(self, value_AV: np.ndarray, distance_AV: np.ndarray | None = None) -> None:
        self.num_bins = value_AV.shape[1]
        distance_AV = np.zeros(value_AV.shape) if distance_AV is None else distance_AV
        rows = [_separated(*row) for row in zip(value_AV, distance_AV, strict=True)]
        self.value_AV = torch.from_numpy(np.stack(rows))
        self._copies: dict[torch.device, Tensor] = {}

    def decode(self, token: Tensor) -> Tensor:
        """Tokens `[..., A]` to environment actions, float32."""
        table_AV = self._on(token.device)
        return table_AV[torch.arange(len(table_AV), device=token.device), token.long()]

    def encode(self, action: Tensor) -> Tensor:
        """Environment actions `[..., A]` to the nearest tokens, int64."""
        table_AV = self._on(action.device)
        return (action.float()[..., None] - table_AV).abs().argmin(dim=-1)

    def _on(self, device: torch.device) -> Tensor:
        if device not in self._copies:
            self._copies[device] = self.value_AV.to(device)
        return self._copies[device]


ActionCodec = UniformBins | TableBins
"""A bijection between tokens and environment actions, per action dim."""


def _separated(value_V: np.ndarray, distance_V: np.ndarray) -> np.ndarray:
    """The numbers as float32, equal ones moved apart by the smallest steps towards zero, in order of distance."""
    rounded_V = value_V.astype(np.float32)
    out_V = rounded_V.copy()
    for value in np.unique(rounded_V):
        (equal,) = np.nonzero(rounded_V == value)
        equal = equal[np.argsort(distance_V[equal], kind="stable")]
        step = max(float(abs(value - np.nextafter(value, np.float32(0.0)))), 1e-9)
        out_V[equal] = value - np.where(value > 0, 1.0, -1.0) * step * np.arange(len(equal))
    if len(np.unique(out_V)) != len(out_V):
        raise ValueError("the table's numbers lie too close together to differ in float32")
    return out_V
