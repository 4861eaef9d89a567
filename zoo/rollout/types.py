"""Records that pass between the files of collecting and updating.

Shape letters: see `vla_gym.specs`; n of this process's N sub-environments; B decisions of a minibatch, L elements of
a decision (tokens, actions, or 1), U values of a decision (K, or 1), W its K * A tokens, M decisions of an update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from torch import Tensor

from vla_policies.types import ActionSample

Observation = dict[str, np.ndarray]
"""Arrays, sub-environments first; `instruction` as UTF-8 bytes."""


@dataclass(frozen=True)
class Step:
    """One decision of n sub-environments and its outcome, batched."""

    env_n: np.ndarray
    """Indices of the sub-environments, ascending."""
    obs: Observation
    """Observation before the decision, `[n, ...]`."""
    sample: ActionSample
    """The decision."""
    next_obs: Observation
    """Observation after it; where an episode ended and another began, the first of the latter."""
    reward_n: np.ndarray
    """Sum of the chunk's rewards, float32."""
    terminated_n: np.ndarray
    """Bool: the episode ended by the task's own rule."""
    truncated_n: np.ndarray
    """Bool: the episode was cut off by time, or lost."""
    executed_n: np.ndarray
    """Simulator steps of the chunk that were run, int64."""
    counted_n: np.ndarray
    """Simulator steps that `num_timesteps` counts, int64: `executed_n`, or 1 where `infos` have no such count."""
    success_n: np.ndarray
    """Bool: solved at the last of these steps."""
    lost_n: np.ndarray
    """Bool: the episode ended with its simulator; it has not failed."""
    task_id_n: np.ndarray
    """Index into the benchmark's tasks, int64; -1 where there are none."""
    start_state_n: Sequence[str]
    """Hash of the simulator state each episode began in; empty where there is none."""
    step_reward_nK: np.ndarray | None
    """Reward of every simulator step, zero where not executed; None where `infos` have none."""
    infos: Sequence[Mapping[str, Any]]
    """`infos` as Stable-Baselines3 gives them to callbacks."""

    @property
    def done_n(self) -> np.ndarray:
        """Bool: the episode ended."""
        done_n: np.ndarray = self.terminated_n | self.truncated_n
        return done_n

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
    """Decisions of one optimiser step."""

    obs: Any
    """Observation as the policy takes it: tensor, or dict of tensors, batch first."""
    choice: Any
    """The record of an `ActionSample`, or SB3's action tensor."""
    executed_B: Tensor | None
    """Simulator steps run of each chunk, int64; None for policies without chunks."""
    old_logprob_BL: Tensor
    """Log-probabilities when the decision was made, float32."""
    advantage_BL: Tensor
    """Advantage of each element, normalised where asked; `[B, 1]` where a whole decision shares one."""
    return_BU: Tensor
    """Targets of the critic."""
    old_value_BU: Tensor
    """Values when the decision was made."""
    mask_BL: Tensor | None
    """Bool: elements that were executed; None when all were."""
    weight_BL: Tensor | None
    """Weight of each element, see `zoo.rollout.log_prob_levels.weighted_loss`; None when all count the same."""
    value_weight_BU: Tensor | None = None
    """Weight of each value, 0 where its step was not executed; None when all count the same."""
    ref_logprob_BW: Tensor | None = None
    """Log-probability of each token under the reference policy, 0 where not executed; None without one."""
    token_mask_BW: Tensor | None = None
    """Bool: tokens that were executed; given with `ref_logprob_BW`."""

    def __len__(self) -> int:
        return len(self.old_logprob_BL)

    def micro_batches(self, size: int | None) -> Iterator[MicroBatch]:
        """Consecutive micro-batches of at most `size` decisions; None = one."""
        if size is None or size >= len(self):
            yield MicroBatch(self, weight=1.0, last=True)
            return
        count = -(-len(self) // size)
        for number in range(count):
            # Sizes differ by at most one.
            rows = slice(len(self) * number // count, len(self) * (number + 1) // count)
            batch = replace(self, **{field.name: _sliced(getattr(self, field.name), rows) for field in fields(self)})
            yield MicroBatch(batch, weight=len(batch) / len(self), last=number == count - 1)


@dataclass(frozen=True)
class MicroBatch:
    """Decisions of one minibatch that are scored at once."""

    batch: Minibatch
    """The decisions."""
    weight: float
    """The minibatch's loss, a mean over its decisions, is the mean over ranks of the sum of weight x this loss."""
    last: bool
    """Whether it is this rank's last micro-batch of the minibatch."""


def _sliced(value: Any, rows: slice) -> Any:
    if value is None:
        return None
    return {key: item[rows] for key, item in value.items()} if isinstance(value, Mapping) else value[rows]


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
        """The same numbers without their graph."""
        token_logprob_BW = self.token_logprob_BW
        return Scores(
            self.logprob_BL.detach(),
            self.entropy_BL.detach(),
            self.value_BU.detach(),
            None if token_logprob_BW is None else token_logprob_BW.detach(),
        )
