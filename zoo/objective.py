"""What an update minimises: policy surrogate - entropy bonus + value error, as one function of a minibatch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.aggregation import weighted_loss
from zoo.losses import ValueClip, clipped_surrogate, value_loss
from zoo.records import Minibatch, Scored


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Settings of one update; schedules are already read."""

    clip_low: float
    """Lower bound of the ratio is 1 - clip_low."""
    clip_high: float
    """Upper bound is 1 + clip_high."""
    dual_clip: float | None
    """Cap of the loss where the advantage is negative, in units of |advantage|; None = no cap."""
    ent_coef: float
    """Weight of the entropy bonus."""
    vf_coef: float
    """Weight of the value error; 0 means there is no critic."""
    clip_vf: float | None
    """Largest move of a value per update; None = free."""
    value_clip: ValueClip
    """How the clipped value takes part."""
    huber_delta: float | None
    """None = squared error."""

    def __call__(self, scored: Scored, batch: Minibatch) -> Terms:
        """Loss of the minibatch; the pieces are means over its decisions."""
        surrogate = clipped_surrogate(
            scored.logprob_BL,
            batch.old_logprob_BL,
            batch.advantage_B[:, None],
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            dual_clip=self.dual_clip,
        )
        policy = weighted_loss(surrogate.loss, batch.weight_BL)
        entropy = weighted_loss(scored.entropy_BL, batch.weight_BL)
        loss = policy - self.ent_coef * entropy
        value = torch.zeros((), device=loss.device)
        if self.vf_coef:
            value = value_loss(
                scored.value_B,
                batch.old_value_B,
                batch.return_B,
                clip=self.clip_vf,
                value_clip=self.value_clip,
                huber_delta=self.huber_delta,
            ).mean()
            loss = loss + self.vf_coef * value
        return Terms(loss=loss, policy=policy.detach(), value=value.detach(), entropy=entropy.detach())


@dataclass(frozen=True)
class Terms:
    """The loss of one minibatch and its pieces, scalars."""

    loss: Tensor
    """With gradient."""
    policy: Tensor
    """Surrogate."""
    value: Tensor
    """Value error, unweighted; zero without a critic."""
    entropy: Tensor
    """Weighted mean entropy."""
