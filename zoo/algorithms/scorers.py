"""Scoring minibatches with the present weights, up to the loss: what data parallelism wraps."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from torch import Tensor, nn

from vla_gym.errors import BadValue
from vla_policies.types import ActionSample, Evaluation
from zoo.algorithms.learner import Scorer
from zoo.algorithms.objective import Objective, Terms
from zoo.rollout.log_prob_levels import CreditLevel, LogprobLevel, to_level
from zoo.rollout.types import Minibatch, Scored


class RolloutScorer(Scorer):
    """Loss of an `Objective`; subclasses say how a minibatch is scored.

    The loss alone carries a graph: what it leaves out (a critic that is not trained, a policy that rests) then has
    no gradient that another rank could wait for.
    """

    def forward(self, batch: Minibatch, objective: Objective | None) -> tuple[Tensor, Terms, Scored] | Tensor:
        """The loss with its gradient, and without one its terms and the scores.

        Without an objective: the log-probability of every token, `[B, K, A]`.
        """
        if objective is None:
            logprob_BKA: Tensor = self.policy.evaluate(batch.obs, batch.choice).logprob_BKA
            return logprob_BKA
        scored = self.score(batch)
        terms = objective(scored, batch)
        return terms.loss, replace(terms, loss=terms.loss.detach()), scored.detached()

    @abstractmethod
    def score(self, batch: Minibatch) -> Scored:
        """Log-probabilities, entropies and values, with gradients."""


class ChunkScorer(RolloutScorer):
    """Scores records at one log-probability level and one value level."""

    def __init__(self, policy: nn.Module, level: LogprobLevel, value_level: CreditLevel = "chunk") -> None:
        super().__init__(policy)
        self.level = level
        self.value_level = value_level

    def score(self, batch: Minibatch) -> Scored:
        assert batch.executed_B is not None
        result: Evaluation = self.policy.evaluate(batch.obs, batch.choice)
        logprob_BL, _ = to_level(result.logprob_BKA, batch.executed_B, self.level)
        entropy_BL, _ = to_level(result.entropy_BKA, batch.executed_B, self.level)
        token_logprob_BW = None
        if batch.ref_logprob_BW is not None:
            token_logprob_BW, _ = to_level(result.logprob_BKA, batch.executed_B, "token")
        value_BU = result.value_B[:, None]
        if self.value_level == "action":
            value_BU = step_values(result, result.logprob_BKA.shape[1])
        return Scored(logprob_BL, entropy_BL, value_BU, token_logprob_BW)


class PlainScorer(RolloutScorer):
    """Scores with `evaluate_actions`: one element per decision."""

    def score(self, batch: Minibatch) -> Scored:
        values, logprob_B, entropy_B = self.policy.evaluate_actions(batch.obs, batch.choice)
        # Without a closed form SB3 estimates the entropy by the samples' own log-probabilities.
        entropy_B = -logprob_B if entropy_B is None else entropy_B
        return Scored(logprob_B[:, None], entropy_B[:, None], values.flatten()[:, None])


STEP_VALUES_LACKING = (
    "value_level='action' needs a critic with an output for each step of the chunk, which this policy lacks. "
    "OpenVLA-OFT has one with policy_kwargs backbone_kwargs value_outputs: <chunk>; else set value_level='chunk'"
)


def step_values(result: ActionSample | Evaluation, chunk: int) -> Tensor:
    """Values of every step of the chunk, `[B, K]`; of a chunk of one step that is the state's value."""
    if result.value_BK is not None:
        return result.value_BK
    if chunk == 1:
        return result.value_B[:, None]
    raise BadValue(f"{STEP_VALUES_LACKING} (chunk {chunk})")
