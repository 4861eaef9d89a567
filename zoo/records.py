"""Records that cross files while an algorithm updates. Shape letters: see `vla_gym.specs`; B decisions of a
minibatch, L elements of a decision (tokens, actions, or 1), M decisions that take part in an update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Minibatch:
    """What one optimiser step learns from."""

    obs: Any
    """Observation as the policy takes it: tensor, or dict of tensors, batch first."""
    choice: Any
    """What was decided: the record of an `ActionSample`, or SB3's action tensor."""
    executed_B: Tensor | None
    """Simulator steps run of each chunk, int64; None for policies without chunks."""
    old_logprob_BL: Tensor
    """Log-probabilities when the decision was made, float32."""
    advantage_B: Tensor
    """Advantage of the decision, normalised where asked."""
    return_B: Tensor
    """Target of the critic."""
    old_value_B: Tensor
    """Value when the decision was made."""
    mask_BL: Tensor | None
    """Bool: elements that were executed; None when all were."""
    weight_BL: Tensor | None
    """What each element counts, see `zoo.aggregation.weighted_loss`; None when all count the same."""


@dataclass(frozen=True)
class Scored:
    """A minibatch scored by the present weights, with gradients."""

    logprob_BL: Tensor
    """Log-probability of each element."""
    entropy_BL: Tensor
    """Entropy of each element, nats."""
    value_B: Tensor
    """State values."""


@dataclass(frozen=True)
class Episode:
    """One finished episode."""

    total_reward: float
    """Sum of rewards."""
    length: int
    """Simulator steps."""
    success_once: bool
    """Solved at any step."""
    success_at_end: bool
    """Solved at the last step."""

    @classmethod
    def from_info(cls, stats: Mapping[str, Any]) -> Episode:
        """From `info["episode"]` of `vla_gym`."""
        return cls(
            total_reward=float(stats["return"]),
            length=int(stats["length"]),
            success_once=bool(stats["success_once"]),
            success_at_end=bool(stats["success_at_end"]),
        )
