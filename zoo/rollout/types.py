"""Records that cross files while an algorithm updates. Shape letters: see `vla_gym.specs`; B decisions of a
minibatch, L elements of a decision (tokens, actions, or 1), U values of a decision (K, or 1), W its K * A tokens,
M decisions that take part in an update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
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
    advantage_BL: Tensor
    """Advantage of each element, normalised where asked; `[B, 1]` where a whole decision shares one."""
    return_BU: Tensor
    """Targets of the critic."""
    old_value_BU: Tensor
    """Values when the decision was made."""
    mask_BL: Tensor | None
    """Bool: elements that were executed; None when all were."""
    weight_BL: Tensor | None
    """What each element counts, see `zoo.rollout.log_prob_levels.weighted_loss`; None when all count the same."""
    value_weight_BU: Tensor | None = None
    """What each value counts, 0 where its step was not executed; None when all count the same."""
    ref_logprob_BW: Tensor | None = None
    """Log-probability of each token under the reference policy, 0 where not executed; None without one."""
    token_mask_BW: Tensor | None = None
    """Bool: tokens that were executed; given with `ref_logprob_BW`."""

    def __len__(self) -> int:
        return len(self.old_logprob_BL)

    def parts(self, size: int | None) -> Iterator[Part]:
        """Consecutive parts of at most `size` decisions; None = one part."""
        if size is None or size >= len(self):
            yield Part(self, share=1.0, last=True)
            return
        count = -(-len(self) // size)
        for number in range(count):
            # Of equal size, but for one.
            rows = slice(len(self) * number // count, len(self) * (number + 1) // count)
            part = replace(self, **{one.name: _apply(getattr(self, one.name), rows) for one in fields(self)})
            yield Part(part, share=len(part) / len(self), last=number == count - 1)


@dataclass(frozen=True)
class Part:
    """What is scored at once of one minibatch."""

    batch: Minibatch
    """The decisions."""
    share: float
    """The minibatch's loss, a mean over its decisions, is the mean over ranks of the sum of share x the part's loss."""
    last: bool
    """Is it this rank's last part of the minibatch?"""


def _apply(value: Any, rows: slice) -> Any:
    if value is None:
        return None
    return {key: one[rows] for key, one in value.items()} if isinstance(value, Mapping) else value[rows]


@dataclass(frozen=True)
class Scored:
    """A minibatch scored by the present weights, with gradients."""

    logprob_BL: Tensor
    """Log-probability of each element."""
    entropy_BL: Tensor
    """Entropy of each element, nats."""
    value_BU: Tensor
    """Values."""
    token_logprob_BW: Tensor | None = None
    """Log-probability of each token, 0 where not executed; None where there is no reference policy."""

    def detached(self) -> Scored:
        """The same numbers without their graph."""
        token_logprob_BW = self.token_logprob_BW
        return Scored(
            self.logprob_BL.detach(),
            self.entropy_BL.detach(),
            self.value_BU.detach(),
            None if token_logprob_BW is None else token_logprob_BW.detach(),
        )
