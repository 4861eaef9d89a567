"""Action tokens <-> environment units: uniform bins, each standing for its centre."""

from __future__ import annotations

import torch
from torch import Tensor

from vla_gym.errors import BadValue


class UniformBins:
    """V equal bins over [low, high]; token v means the bin's centre.

    With the defaults every centre is a multiple of 1/256, so float32 holds it exactly and
    `encode(decode(token)) == token` for every token: an algorithm that stores only environment
    actions (Stable-Baselines3's PPO) can recover the tokens.
    """

    def __init__(self, num_bins: int = 256, low: float = -1.0, high: float = 1.0) -> None:
        if num_bins < 2 or not low < high:
            raise BadValue(f"bins need num_bins >= 2 and low < high, got {num_bins}, [{low}, {high}]")
        self.num_bins = num_bins
        self.low = low
        self.high = high

    def decode(self, token: Tensor) -> Tensor:
        """Tokens (any integer dtype, any shape) to bin centres, float32, same shape."""
        width = (self.high - self.low) / self.num_bins
        return self.low + width * (token.float() + 0.5)

    def encode(self, action: Tensor) -> Tensor:
        """Actions (any shape) to the token of their bin, int64; values outside go to the end bins."""
        position = (action.float() - self.low) * (self.num_bins / (self.high - self.low))
        return position.floor().long().clamp(0, self.num_bins - 1)

    def centres(self) -> Tensor:
        """All bin centres in token order, float32 `[V]`."""
        return self.decode(torch.arange(self.num_bins))
