"""Losses: pure functions of tensors, element by element; `PPOLoss`, their sum over a minibatch; and the scorer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vla_policies import VLAPolicy
from vla_policies.actions.noise import Noise
from zoo.config.algorithm_configs import CreditLevel, LogprobLevel, ValueClip
from zoo.distributed.learner import Scorer
from zoo.rollout.buffer import Minibatch, step_values, to_level


def clipped_surrogate(
    logprob: Tensor,
    old_logprob: Tensor,
    advantage: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """Return max(-A * ratio, -A * clip(ratio, 1 - clip_low, 1 + clip_high)), ratio = exp(logprob - old_logprob).

    Schulman et al. 2017 (PPO, arXiv:1707.06347, eq. 7), as a loss. Bounds may differ ("clip-higher": Yu et
    al. 2025, DAPO, arXiv:2503.14476). `advantage` must
    broadcast to `logprob`.
    """
    ratio = torch.exp(logprob - old_logprob)
    clipped = torch.clamp(ratio, 1 - clip_low, 1 + clip_high)
    return -torch.min(advantage * ratio, advantage * clipped)


def clip_binds(ratio: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Bool: elements whose loss the clip made worse than the unclipped one, so that no gradient flows."""
    clipped = torch.clamp(ratio, 1 - clip_low, 1 + clip_high)
    return advantage * clipped < advantage * ratio


def value_loss(
    value: Tensor,
    old_value: Tensor,
    target: Tensor,
    *,
    clip: float | None = None,
    value_clip: ValueClip = "replace",
    huber_delta: float | None = None,
) -> Tensor:
    """Error of `value` against `target`: e**2, or Huber's e**2 / 2 below `huber_delta` and linear above.

    With `clip`, V_clip = old_value + clamp(value - old_value, -clip, clip) is used as `value_clip` says.
    Huber carries the usual factor 1/2, the square does not (Stable-Baselines3): vf_coef 1 with Huber equals
    vf_coef 0.5 without.
    """
    if clip is None:
        return _error(value - target, huber_delta)
    clipped = old_value + torch.clamp(value - old_value, -clip, clip)
    if value_clip == "replace":
        return _error(clipped - target, huber_delta)
    return torch.max(_error(value - target, huber_delta), _error(clipped - target, huber_delta))


def kl_k1(log_ratio: Tensor) -> Tensor:
    """-log_ratio: unbiased estimate of KL(old || new) from samples of old; noisy, may be negative.

    `log_ratio` is log new - log old. Schulman, "Approximating KL divergence", joschu.net/blog/kl-approx.html.
    """
    return -log_ratio


def kl_k3(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio) - 1 - log_ratio: unbiased, of low variance, never negative. Source as `kl_k1`."""
    return torch.expm1(log_ratio) - log_ratio


def reference_kl(logprob: Tensor, ref_logprob: Tensor) -> Tensor:
    """k3 estimate of KL(policy || reference): exp(d) - 1 - d, d = log reference - log policy, with gradient.

    Shao et al. 2024 (GRPO, arXiv:2402.03300, eq. 4), element by element of what the policy drew.
    """
    return kl_k3(ref_logprob - logprob)


def _error(difference: Tensor, huber_delta: float | None) -> Tensor:
    if huber_delta is None:
        return difference.square()
    size = difference.abs()
    return torch.where(size < huber_delta, 0.5 * difference.square(), huber_delta * (size - 0.5 * huber_delta))


def weighted_loss(loss_BL: Tensor, weight_BL: Tensor | None) -> Tensor:
    """Scalar: mean over decisions of the weighted sum over their elements; plain mean without weights."""
    if weight_BL is None:
        return loss_BL.mean()
    return (loss_BL * weight_BL).sum(dim=1).mean()


def entropies(entropy_BKA: Tensor, executed_B: Tensor, level: LogprobLevel, own_level: LogprobLevel) -> Tensor:
    """Entropies for the elements of `level`, float `[B, L]`, zero where masked.

    Where `own_level` differs, each element of a decision has the mean over the decision's elements at `own_level`, so
    that a bonus does not grow with `level`, and decisions weigh in it as in the policy loss.
    """
    entropy_BL, mask_BL = to_level(entropy_BKA, executed_B, level)
    if own_level == level:
        return entropy_BL
    own_BE, own_mask_BE = to_level(entropy_BKA, executed_B, own_level)
    mean_B = own_BE.sum(dim=1) / own_mask_BE.sum(dim=1).clamp(min=1)
    return mean_B[:, None] * mask_BL


@dataclass(frozen=True)
class Scores:
    """A minibatch scored by the present weights, with gradients."""

    logprob_BL: Tensor
    entropy_BL: Tensor
    value_BU: Tensor
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


@dataclass(frozen=True, kw_only=True)
class PPOLoss:
    """Settings of one update; schedules are already read."""

    clip_low: float
    """Lower bound of the ratio is 1 - clip_low."""
    clip_high: float
    """Upper bound is 1 + clip_high."""
    ent_coef: float = 0.0
    vf_coef: float = 0.0
    """Weight of the value error; 0 means there is no critic."""
    clip_vf: float | None = None
    """Largest move of a value per update; None = free."""
    value_clip: ValueClip = "replace"
    """How the clipped value is used."""
    huber_delta: float | None = None
    """None = squared error."""
    kl_coef: float = 0.0
    critic_only: bool = False
    """Whether the loss is the value error alone (the other terms are still reported)."""

    def __call__(self, scores: Scores, batch: Minibatch) -> LossTerms:
        """Return the minibatch's loss; its terms are means over decisions."""
        surrogate_BL = clipped_surrogate(
            scores.logprob_BL,
            batch.old_logprob_BL,
            batch.advantage_BL,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
        )
        policy = weighted_loss(surrogate_BL, batch.weight_BL)
        entropy = weighted_loss(scores.entropy_BL, batch.weight_BL)
        loss = policy - self.ent_coef * entropy
        if self.kl_coef and not self.critic_only:
            loss = loss + self.kl_coef * _kl_to_reference(scores, batch)
        if self.critic_only:
            loss = torch.zeros((), device=loss.device)
        value = torch.zeros((), device=loss.device)
        if self.vf_coef:
            error_BU = value_loss(
                scores.value_BU,
                batch.old_value_BU,
                batch.return_BU,
                clip=self.clip_vf,
                value_clip=self.value_clip,
                huber_delta=self.huber_delta,
            )
            value = weighted_loss(error_BU, batch.value_weight_BU)
            loss = loss + self.vf_coef * value
        with torch.no_grad():
            policy_abs = weighted_loss(surrogate_BL.abs(), batch.weight_BL)
        return LossTerms(
            loss=loss,
            policy=policy.detach(),
            policy_abs=policy_abs,
            value=value.detach(),
            entropy=entropy.detach(),
        )


@dataclass(frozen=True)
class LossTerms:
    """The loss of one minibatch, with its gradient, and its terms, scalars."""

    loss: Tensor
    policy: Tensor
    policy_abs: Tensor
    """As `policy`, of absolute values."""
    value: Tensor
    """Value error, unweighted; zero without a critic."""
    entropy: Tensor


def _kl_to_reference(scores: Scores, batch: Minibatch) -> Tensor:
    """Mean KL per executed token of each decision, weighted as the decision's policy loss is."""
    assert scores.token_logprob_BW is not None
    assert batch.ref_logprob_BW is not None
    assert batch.token_mask_BW is not None
    # Both are zero where nothing was executed, and so is their KL.
    kl_BW = reference_kl(scores.token_logprob_BW, batch.ref_logprob_BW)
    kl_B = kl_BW.sum(dim=1) / batch.token_mask_BW.sum(dim=1).clamp(min=1)
    return (kl_B * batch.weight_BL.sum(dim=1)).mean()


class PolicyScorer(Scorer):
    """Scores decisions up to their `PPOLoss`, and frames of demonstrations up to their imitation loss.

    The loss alone carries a graph: what it leaves out (a critic or a policy that is not trained) then has no gradient
    that another rank could wait for.
    """

    def __init__(
        self,
        policy: VLAPolicy,
        level: LogprobLevel,
        value_level: CreditLevel = "chunk",
        entropy_level: LogprobLevel | None = None,
    ) -> None:
        """`entropy_level` None = as `level`."""
        super().__init__(policy)
        self.level = level
        self.value_level = value_level
        self.entropy_level = entropy_level or level

    def forward(self, batch: object, loss: PPOLoss | Noise | None) -> tuple[Tensor, LossTerms, Scores] | Tensor:
        """Return the loss with its gradient, its terms and the scores without.

        `batch` is a `Minibatch`. Without `loss`, return the log-probability of every token, `[B, K, A]`. Of `Frames`,
        with the noise that they draw from, return their imitation loss.
        """
        if isinstance(loss, Noise):  # only runs beside demonstrations load them
            from zoo.imitation.frames import Frames
            from zoo.imitation.loss import imitation_loss

            assert isinstance(batch, Frames)
            return imitation_loss(self.policy, batch, loss)
        assert isinstance(batch, Minibatch)
        if loss is None:
            logprob_BKA: Tensor = self.policy.evaluate(batch.obs, batch.choice).logprob_BKA
            return logprob_BKA
        scores = self.score(batch)
        terms = loss(scores, batch)
        return terms.loss, replace(terms, loss=terms.loss.detach()), scores.detached()

    def score(self, batch: Minibatch) -> Scores:
        """Return log-probabilities, entropies and values, with gradients."""
        result = self.policy.evaluate(batch.obs, batch.choice)
        logprob_BL, _ = to_level(result.logprob_BKA, batch.executed_B, self.level)
        entropy_BL = entropies(result.entropy_BKA, batch.executed_B, self.level, self.entropy_level)
        token_logprob_BW = None
        if batch.ref_logprob_BW is not None:
            token_logprob_BW, _ = to_level(result.logprob_BKA, batch.executed_B, "token")
        value_BU = result.value_B[:, None]
        if self.value_level == "action":
            value_BU = step_values(result, result.logprob_BKA.shape[1])
        return Scores(logprob_BL, entropy_BL, value_BU, token_logprob_BW)
