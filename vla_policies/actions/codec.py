"""Action tokens <-> environment units: uniform bins, each standing for its centre, or a table per dim."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vla_gym.errors import BadValue


class ActionCodec(Protocol):
    """A bijection between tokens and environment actions, per action dim."""

    num_bins: int
    """V, tokens per action dim."""

    def decode(self, token: Tensor) -> Tensor:
        """Tokens `[..., A]` to environment actions, float32."""

    def encode(self, action: Tensor) -> Tensor:
        """Environment actions `[..., A]` to tokens, int64; inverse of `decode`, nearest otherwise."""


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
        if value_AV.ndim != 2 or np.abs(value_AV).max() > 1.0:
            raise ValueError(f"value_AV must be [A, V] in [-1, 1], got {value_AV.shape}")
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
        """The table on `device`, where it goes once."""
        if device not in self._copies:
            self._copies[device] = self.value_AV.to(device)
        return self._copies[device]


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
