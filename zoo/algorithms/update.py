"""One update: passes over the rollout in minibatches, a gradient step for each."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from vla_gym.errors import BadValue, unknown_name
from zoo.algorithms.learner import critic_parameters
from zoo.algorithms.objective import Objective
from zoo.algorithms.reference_policy import KL_REFERENCES
from zoo.algorithms.update_metrics import Tally

if TYPE_CHECKING:
    from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm

LEVELS = ("token", "action", "chunk")


def check_update_settings(
    *,
    batch_size: int,
    n_epochs: int,
    dual_clip: float | None,
    logprob_level: str,
    kl_coef: float,
    kl_reference: str,
    micro_batch_size: int | None,
) -> None:
    """Raise `UnknownName` or `BadValue` for settings that no update can have."""
    if logprob_level not in LEVELS:
        raise unknown_name("logprob_level", str(logprob_level), LEVELS)
    if dual_clip is not None and dual_clip <= 1:
        raise BadValue(f"dual_clip must be > 1 (in units of |advantage|) or None, got {dual_clip}")
    if batch_size < 1 or n_epochs < 1:
        raise BadValue(f"batch_size and n_epochs must be at least 1, got {batch_size} and {n_epochs}")
    if kl_coef < 0:
        raise BadValue(f"kl_coef must be 0 (off) or more, got {kl_coef}")
    if kl_reference not in KL_REFERENCES:
        raise unknown_name("kl_reference", str(kl_reference), KL_REFERENCES)
    if micro_batch_size is not None and micro_batch_size < 1:
        raise BadValue(f"micro_batch_size must be at least 1, or None, got {micro_batch_size}")


def run_update(algorithm: VLAOnPolicyAlgorithm, objective: Objective) -> Tally:
    """Update the policy with the rollout in the buffer; returns what happened."""
    learner, tally = algorithm.learner, Tally(objective, algorithm.process_group)
    learner.policy.set_training_mode(True)  # type: ignore[operator]
    algorithm._update_learning_rate(learner.raw_optimizer)
    with algorithm.clock.phase("update"):
        if algorithm.recompute_logprobs or learner.own_precision:
            algorithm.experience.rescore(algorithm)
        if algorithm.kl_coef and not objective.critic_only:
            algorithm.experience.score_reference(algorithm)
        with _moving(algorithm, objective):
            for _ in range(algorithm.n_epochs):
                finished = _pass(algorithm, objective, tally)
                algorithm._n_updates += 1
                if not finished:
                    break
        learner.hand_over()
    return tally


def _moving(algorithm: VLAOnPolicyAlgorithm, objective: Objective) -> AbstractContextManager[None]:
    """Inside, steps move what the objective is about."""
    if not objective.critic_only:
        return nullcontext()
    return algorithm.learner.only(critic_parameters(algorithm.learner.policy))


def _pass(algorithm: VLAOnPolicyAlgorithm, objective: Objective, tally: Tally) -> bool:
    """One pass over the rollout; False when `target_kl` ended it."""
    learner, target_kl = algorithm.learner, algorithm.target_kl
    tally.begin_epoch()
    for parts in algorithm.experience.minibatches(algorithm):
        learner.begin()
        tally.begin_minibatch()
        for part in parts:
            with learner.part(last=part.last):
                loss, terms, scored = learner.score(part.batch, objective)
                learner.backward(loss if part.share == 1.0 else loss * part.share)
            tally.add(terms, scored, part)
        if target_kl is not None and (kl := tally.latest_kl()) > 1.5 * target_kl:
            algorithm.logger.info(
                f"Early stop of update {algorithm._n_updates}: KL {kl:.3g} > 1.5 x target_kl"
            )
            learner.begin()
            return False
        norm, stepped = learner.apply()
        tally.add_step(norm, stepped=stepped)
    return True
