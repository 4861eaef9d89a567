"""Random numbers of decisions.

Noise
├── TorchNoise   torch's generator of the device, from which Stable-Baselines3's methods draw
└── SlotNoise    a function of (seed, decision, slot) alone

With `SlotNoise` a run's decisions do not depend on how its slots are distributed over processes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

_BLOCK = 4
"""Philox's numbers for one value of its counter."""


class Noise(ABC):
    """Independent numbers for the rows of a batch; every call gives fresh ones."""

    @abstractmethod
    def uniform(self, *shape: int, device: torch.device) -> Tensor:
        """Numbers in [0, 1), float64; `shape[0]` counts rows."""

    @abstractmethod
    def normal(self, *shape: int, device: torch.device) -> Tensor:
        """Standard normal numbers, float32; `shape[0]` counts rows."""


class TorchNoise(Noise):
    """Draws from torch's global generator of the device."""

    def uniform(self, *shape: int, device: torch.device) -> Tensor:
        return torch.rand(shape, dtype=torch.float64, device=device)

    def normal(self, *shape: int, device: torch.device) -> Tensor:
        return torch.randn(shape, device=device)


TORCH_NOISE = TorchNoise()


class SlotNoise(Noise):
    """Numbers of one decision of some slots.

    A counter-based generator (Philox 4x64, Salmon et al. 2011) starts at the counter (slot, call, decision), so a
    row's numbers follow from its slot, and only the given slots (and those between them) are computed.
    """

    def __init__(self, seed: int, decision: tuple[int, int], slot_N: np.ndarray) -> None:
        """`decision` is (update, number of the decision in its rollout); `slot_N` names a slot for each row."""
        self._seed = seed
        self._decision = decision
        self._slot_N = slot_N
        self._calls = 0

    def uniform(self, *shape: int, device: torch.device) -> Tensor:
        if shape[0] != len(self._slot_N):
            raise ValueError(f"noise is for {len(self._slot_N)} slots, got {shape[0]} rows")
        wanted = math.prod(shape[1:])
        blocks = -(-wanted // _BLOCK)
        first, last = int(self._slot_N.min()), int(self._slot_N.max())
        counter = [first * blocks, self._calls, self._decision[1], self._decision[0]]
        self._calls += 1
        generator = np.random.Generator(np.random.Philox(key=self._seed, counter=counter))
        drawn = generator.random((last - first + 1, blocks * _BLOCK))[self._slot_N - first, :wanted]
        return torch.from_numpy(drawn.reshape(shape)).to(device)

    def normal(self, *shape: int, device: torch.device) -> Tensor:
        # Zero, the one number whose quantile is infinite, becomes half the smallest step.
        uniform = self.uniform(*shape, device=device).clamp(min=2.0**-54)
        return torch.special.ndtri(uniform).float()
