"""Random numbers of decisions.

Noise
├── TorchNoise        torch's generator of the device, from which Stable-Baselines3's methods draw
├── CounterNoise
│   ├── SlotNoise     a function of (seed, decision, slot) alone
│   └── EpisodeNoise  a function of (seed, start state, round, decision) alone
└── RowNoise          a noise of its own for each row

With `SlotNoise` a run's decisions do not depend on how its slots are distributed over processes. With `EpisodeNoise` an
episode's do not depend on the other episodes of its evaluation, or on how many are played side by side.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vla_policies.devices import upload

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


class CounterNoise(Noise):
    """Base of counter-based generators (Philox 4x64, Salmon et al. 2011); subclasses say where a row begins."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._calls = 0

    @abstractmethod
    def _draw(self, call: int, wanted: int) -> np.ndarray:
        """`wanted` numbers in [0, 1) of the call with this number for each row, float64 `[B, wanted]`."""

    def uniform(self, *shape: int, device: torch.device) -> Tensor:
        assert shape[0] == self._num_rows, f"noise is for {self._num_rows} rows, got {shape[0]}"
        drawn = self._draw(self._calls, math.prod(shape[1:]))
        self._calls += 1
        return upload(torch.from_numpy(drawn.reshape(shape)), device)

    def normal(self, *shape: int, device: torch.device) -> Tensor:
        # Zero, the one number whose quantile is infinite, becomes half the smallest step.
        uniform = self.uniform(*shape, device=device).clamp(min=2.0**-54)
        return torch.special.ndtri(uniform).float()


class SlotNoise(CounterNoise):
    """Numbers of one decision of some slots.

    The generator starts at the counter (slot, call, decision), so a row's numbers follow from its slot, and only the
    given slots (and those between them) are computed.
    """

    def __init__(self, seed: int, decision: tuple[int, int], slot_N: np.ndarray) -> None:
        """`decision` is (update, number of the decision in its rollout); `slot_N` names a slot for each row."""
        super().__init__(len(slot_N))
        self.seed = seed
        self.decision = decision
        self.slot_N = slot_N

    def _draw(self, call: int, wanted: int) -> np.ndarray:
        blocks = -(-wanted // _BLOCK)
        first, last = int(self.slot_N.min()), int(self.slot_N.max())
        counter = [first * blocks, call, self.decision[1], self.decision[0]]
        generator = np.random.Generator(np.random.Philox(key=self.seed, counter=counter))
        return generator.random((last - first + 1, blocks * _BLOCK))[self.slot_N - first, :wanted]


class EpisodeDecision(NamedTuple):
    """A decision of an evaluated episode."""

    task_id: int
    trial_id: int
    """Start state of the task."""
    round: int
    """How often the start state was played before."""
    decision: int
    """Number of the decision in its episode."""


class EpisodeNoise(CounterNoise):
    """Numbers of one decision of some episodes, each of which may be at another decision.

    The generator's key is (seed, start state), its counter begins at (call, decision, round).
    """

    def __init__(self, seed: int, decisions: Sequence[EpisodeDecision]) -> None:
        super().__init__(len(decisions))
        self.seed = seed
        self.decisions = decisions

    def _draw(self, call: int, wanted: int) -> np.ndarray:
        rows = np.empty((len(self.decisions), wanted))
        for row, (task_id, trial_id, number, decision) in zip(rows, self.decisions, strict=True):
            # From 1: SlotNoise's second word is 0, so that no episode repeats numbers of training.
            start_state = (task_id + 1 << 32) | trial_id
            bits = np.random.Philox(key=[self.seed, start_state], counter=[0, call, decision, number])
            row[:] = np.random.Generator(bits).random(wanted)
        return rows


class RowNoise(Noise):
    """A noise of its own for each row, where rows of one batch were asked for by different callers."""

    def __init__(self, rows: Sequence[Noise]) -> None:
        self._rows = rows

    def uniform(self, *shape: int, device: torch.device) -> Tensor:
        return self._joined("uniform", shape, device)

    def normal(self, *shape: int, device: torch.device) -> Tensor:
        return self._joined("normal", shape, device)

    def _joined(self, draw: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
        assert shape[0] == len(self._rows), f"noise is for {len(self._rows)} rows, got {shape[0]}"
        return torch.cat([getattr(row, draw)(1, *shape[1:], device=device) for row in self._rows])
