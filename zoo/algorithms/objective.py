"""What an update minimises: surrogate - entropy bonus + reference KL + value error, of one minibatch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.algorithms.losses import ValueClip, clipped_surrogate, reference_kl, value_loss
from zoo.rollout.log_prob_levels import weighted_loss
from zoo.rollout.types import Minibatch, Scored


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
    kl_coef: float = 0.0
    """Weight of the KL to the reference policy."""
    critic_only: bool = False
    """Leave everything but the value error out of the loss (it is still reported)."""

    def __call__(self, scored: Scored, batch: Minibatch) -> Terms:
        """Loss of the minibatch; the pieces are means over its decisions."""
        surrogate = clipped_surrogate(
            scored.logprob_BL,
            batch.old_logprob_BL,
            batch.advantage_BL,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            dual_clip=self.dual_clip,
        )
        policy = weighted_loss(surrogate.loss, batch.weight_BL)
        entropy = weighted_loss(scored.entropy_BL, batch.weight_BL)
        loss = policy - self.ent_coef * entropy
        if self.kl_coef and not self.critic_only:
            loss = loss + self.kl_coef * _kl_to_reference(scored, batch)
        if self.critic_only:
            loss = torch.zeros((), device=loss.device)
        value = torch.zeros((), device=loss.device)
        if self.vf_coef:
            error_BU = value_loss(
                scored.value_BU,
                batch.old_value_BU,
                batch.return_BU,
                clip=self.clip_vf,
                value_clip=self.value_clip,
                huber_delta=self.huber_delta,
            )
            value = weighted_loss(error_BU, batch.value_weight_BU)
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


def _kl_to_reference(scored: Scored, batch: Minibatch) -> Tensor:
    """Mean KL per executed token of each decision, weighted as the decision's policy loss is."""
    assert scored.token_logprob_BW is not None
    assert batch.ref_logprob_BW is not None
    assert batch.token_mask_BW is not None
    assert batch.weight_BL is not None
    # Both are zero where nothing was executed, and so is their KL.
    kl_BW = reference_kl(scored.token_logprob_BW, batch.ref_logprob_BW)
    kl_B = kl_BW.sum(dim=1) / batch.token_mask_BW.sum(dim=1).clamp(min=1)
    return (kl_B * batch.weight_BL.sum(dim=1)).mean()
