"""Records that pass between the files of collecting and updating.

Shape letters: see `vla_gym.specs`; n of this process's N sub-environments; B decisions of a minibatch, L elements of
a decision (tokens, actions, or 1), U values of a decision (K, or 1), W its K * A tokens, M decisions of an update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from vla_gym.vector.step import EnvStep
from vla_policies.types import ActionSample

Observation = dict[str, np.ndarray]
"""Arrays, sub-environments first; `instruction` as UTF-8 bytes."""


@dataclass(frozen=True)
class Step:
    """One decision of n sub-environments and its outcome."""

    env_n: np.ndarray
    """Indices of the sub-environments, ascending."""
    obs: Observation
    """Observation before the decision, `[n, ...]`."""
    sample: ActionSample
    """The decision."""
    outcome: EnvStep
    """Rewards, ends and last observation of the chunk that was run."""
    next_obs: Observation
    """Observation after it; where an episode ended and another began, the first of the latter."""

    @property
    def done_n(self) -> np.ndarray:
        """Bool: the episode ended."""
        return self.outcome.done_n

    def followed_by(self, next_obs: Observation) -> Step:
        """Return the step with another `next_obs`."""
        return replace(self, next_obs=next_obs)

    def spread(self, value_n: np.ndarray, num_envs: int) -> np.ndarray:
        """`value_n` at its sub-environments' indices, zero elsewhere, `[N]`."""
        value_N = np.zeros(num_envs, dtype=value_n.dtype)
        value_N[self.env_n] = value_n
        return value_N


OnStep = Callable[[Step | None], bool]
"""Called after every decision (with None after a rollout of other processes); False stops the rollout."""


@dataclass(frozen=True)
class RolloutStart:
    """Where a rollout begins."""

    number: int
    """Number of updates done; the noise of decisions follows from it."""
    num_timesteps: int
    """Simulator steps of the run so far."""
    obs: Observation
    """Present observation of every sub-environment."""
    at_episode_start: bool = False
    """Whether every sub-environment stands at the beginning of an episode."""


@dataclass(frozen=True)
class Minibatch:
    """Decisions that are scored at once."""

    obs: dict[str, Tensor]
    """Observation as the policy takes it, batch first."""
    choice: dict[str, Tensor]
    """The record of an `ActionSample`."""
    executed_B: Tensor
    """Simulator steps run of each chunk, int64."""
    old_logprob_BL: Tensor
    """Log-probabilities when the decision was made, float32."""
    advantage_BL: Tensor
    """Advantage of each element; `[B, 1]` where a whole decision shares one."""
    return_BU: Tensor
    """Targets of the critic."""
    old_value_BU: Tensor
    """Values when the decision was made."""
    mask_BL: Tensor
    """Bool: elements that were executed."""
    weight_BL: Tensor
    """Weight of each element, see `zoo.rollout.log_prob_levels.weighted_loss`."""
    value_weight_BU: Tensor | None = None
    """Weight of each value, 0 where its step was not executed; None when all count the same."""
    ref_logprob_BW: Tensor | None = None
    """Log-probability of each token under the reference policy, 0 where not executed; None without one."""
    token_mask_BW: Tensor | None = None
    """Bool: tokens that were executed; given with `ref_logprob_BW`."""


@dataclass(frozen=True)
class MicroBatch:
    """Decisions of one minibatch that are scored at once."""

    batch: Minibatch
    """The decisions."""
    weight: float
    """The minibatch's loss, a mean over its decisions, is the mean over ranks of the sum of weight x this loss."""
    last: bool
    """Whether it is this rank's last micro-batch of the minibatch."""


@dataclass(frozen=True)
class Scores:
    """A minibatch scored by the present weights, with gradients."""

    logprob_BL: Tensor
    """Log-probability of each element."""
    entropy_BL: Tensor
    """Entropy of each element, nats."""
    value_BU: Tensor
    """Values."""
    token_logprob_BW: Tensor | None = None
    """Log-probability of each token, 0 where not executed; None where there is no reference policy."""

    def detached(self) -> Scores:
        """Return the same numbers without their graph."""
        token_logprob_BW = self.token_logprob_BW
        return Scores(
            self.logprob_BL.detach(),
            self.entropy_BL.detach(),
            self.value_BU.detach(),
            None if token_logprob_BW is None else token_logprob_BW.detach(),
        )
