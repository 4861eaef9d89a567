"""Records between a policy and its callers. Shape letters: see `vla_gym.specs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class PolicyInputs:
    """A processor's output for B observations, M cameras and L text tokens."""

    pixels_BMCHW: Tensor
    """Images resized and normalised for the model, floating point."""
    text_BL: Tensor
    """Token ids, int64, right padded."""
    text_mask_BL: Tensor
    """True where a text token is real. On the CPU: padding decides what is computed, and a GPU would be waited for."""
    state_BS: Tensor | None
    """Proprioception, float32; None when the policy has no state input."""
    keys: tuple[bytes, ...] | None = None
    """A digest of each observation, by which a backbone keeps what it makes of one; None: nothing is kept."""


@dataclass(frozen=True)
class ActionSample:
    """Decisions for B observations."""

    action_BKA: Tensor
    """Environment action chunk, float32 in [-1, 1]."""
    logprob_BKA: Tensor
    """Log-probability of each action token (or Gaussian dim), float32."""
    value_B: Tensor
    """State value of each observation, float32 (zeros when the policy has no value head)."""
    record: Mapping[str, Tensor] = field(default_factory=dict)
    """Input of `evaluate`, which scores this decision again, batch first: token policies store
    `{"token": int64[B, K, A]}`, flow policies their denoising chain. The rollout buffer keeps it unchanged."""
    value_BK: Tensor | None = None
    """Value of each step of the chunk, float32, where the critic has an output for each; `value_B` is the first."""


@dataclass(frozen=True)
class Evaluation:
    """A stored decision scored by the present weights, with gradients."""

    logprob_BKA: Tensor
    """Same numbers as `ActionSample.logprob_BKA` when the weights have not changed."""
    entropy_BKA: Tensor
    """Entropy of each action distribution, nats."""
    value_B: Tensor
    """State value, float32."""
    value_BK: Tensor | None = None
    """Value of each step of the chunk, float32, where the critic has an output for each; `value_B` is the first."""
    privileged_BP: Tensor | None = None
    """Prediction of the simulator's privileged vector, where the policy has a head for it."""
