"""Scoring a minibatch of decisions, or of demonstrations, up to its loss."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from torch import Tensor, nn

from vla_policies.actions.noise import Noise
from vla_policies.types import Evaluation
from zoo.algorithms.losses import LossTerms, PPOLoss
from zoo.config.algorithm_configs import CreditLevel, LogprobLevel
from zoo.distributed.learner import Scorer
from zoo.imitation.frames import Frames
from zoo.imitation.loss import imitation_loss
from zoo.rollout.log_prob_levels import entropies, step_values, to_level
from zoo.rollout.types import Minibatch, Scores


class RolloutScorer(Scorer):
    """Computes a `PPOLoss`; subclasses score the minibatch.

    The loss alone carries a graph: what it leaves out (a critic or a policy that is not trained) then has no gradient
    that another rank could wait for.
    """

    def forward(self, batch: Minibatch, loss: PPOLoss | None) -> tuple[Tensor, LossTerms, Scores] | Tensor:
        """Return the loss with its gradient, its terms and the scores without.

        Without `loss`, return the log-probability of every token, `[B, K, A]`.
        """
        if loss is None:
            logprob_BKA: Tensor = self.policy.evaluate(batch.obs, batch.choice).logprob_BKA
            return logprob_BKA
        scores = self.score(batch)
        terms = loss(scores, batch)
        return terms.loss, replace(terms, loss=terms.loss.detach()), scores.detached()

    @abstractmethod
    def score(self, batch: Minibatch) -> Scores:
        """Log-probabilities, entropies and values, with gradients."""


class ChunkScorer(RolloutScorer):
    """Scores records at one level of log-probabilities, of values and of entropies (None: as log-probabilities)."""

    def __init__(
        self,
        policy: nn.Module,
        level: LogprobLevel,
        value_level: CreditLevel = "chunk",
        entropy_level: LogprobLevel | None = None,
    ) -> None:
        super().__init__(policy)
        self.level = level
        self.value_level = value_level
        self.entropy_level = entropy_level or level

    def forward(
        self, batch: Minibatch | Frames, loss: PPOLoss | Noise | None
    ) -> tuple[Tensor, LossTerms, Scores] | Tensor:
        """As `RolloutScorer`; of frames of demonstrations, with the noise that they draw from, their imitation loss."""
        if isinstance(batch, Frames):
            assert isinstance(loss, Noise)
            return imitation_loss(self.policy, batch, loss)
        assert not isinstance(loss, Noise)
        return super().forward(batch, loss)

    def score(self, batch: Minibatch) -> Scores:
        assert batch.executed_B is not None
        result: Evaluation = self.policy.evaluate(batch.obs, batch.choice)
        logprob_BL, _ = to_level(result.logprob_BKA, batch.executed_B, self.level)
        entropy_BL = entropies(result.entropy_BKA, batch.executed_B, self.level, self.entropy_level)
        token_logprob_BW = None
        if batch.ref_logprob_BW is not None:
            token_logprob_BW, _ = to_level(result.logprob_BKA, batch.executed_B, "token")
        value_BU = result.value_B[:, None]
        if self.value_level == "action":
            value_BU = step_values(result, result.logprob_BKA.shape[1])
        return Scores(logprob_BL, entropy_BL, value_BU, token_logprob_BW)


class PlainScorer(RolloutScorer):
    """Scores with `evaluate_actions`: one element per decision."""

    def score(self, batch: Minibatch) -> Scores:
        values, logprob_B, entropy_B = self.policy.evaluate_actions(batch.obs, batch.choice)
        # Without a closed form SB3 estimates the entropy by the samples' own log-probabilities.
        entropy_B = -logprob_B if entropy_B is None else entropy_B
        return Scores(logprob_B[:, None], entropy_B[:, None], values.flatten()[:, None])
