"""Evaluations during training: which environment, which start states, and how the policy acts there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from vla_gym.errors import BadValue
from vla_gym.make import known_options
from vla_gym.specs import Benchmark
from zoo.config.settings import Count, CountOrZero, Positive, annotations_of
from zoo.evaluation.protocol import EvaluationProtocol


class EvalOptions(TypedDict, total=False):
    """Settings of evaluations during training; without them the policy's deterministic actions, as it is trained."""

    eval_env: str
    """Evaluate there, e.g. on held-out tasks, which need the same actions; none: in the run's environment."""
    eval_split: str
    """Start states of another split, e.g. test; none: the run's own."""
    eval_env_kwargs: Mapping[str, Any]
    """The benchmark's options in evaluations, over the run's, e.g. protocol:lerobot."""
    eval_stochastic: bool
    """Sample actions in evaluations, too."""
    eval_temperature: Positive
    """Sample action tokens there at this temperature."""
    eval_top_k: CountOrZero
    """Sample there among the K likeliest tokens; 0: all."""
    eval_rounds: Count
    """Episodes of every start state, with other noise; none: 1."""


EVAL_OPTIONS = annotations_of(EvalOptions)
"""Setting -> its annotation."""


def evaluation_protocol(
    options: Mapping[str, Any], env_options: Mapping[str, Any], start_states: int
) -> EvaluationProtocol:
    """Return the protocol of a run with these `EvalOptions` and `EnvOptions`; raises `BadValue` for a contradiction."""
    drawn = "eval_temperature" in options or "eval_top_k" in options
    return EvaluationProtocol(
        sample=options.get("eval_stochastic", drawn),
        temperature=options.get("eval_temperature"),
        top_k=options.get("eval_top_k"),
        rounds=options.get("eval_rounds", 1),
        start_states=start_states,
        split=options.get("eval_split", env_options.get("split")),
        env_kwargs=options.get("eval_env_kwargs", {}),
    )


def evaluated_options(options: Mapping[str, Any], env_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of `vla_gym.make_vec` that evaluations of such a run have."""
    kept = carried_options(options["eval_env"], env_options) if "eval_env" in options else env_options
    split = {"split": options["eval_split"]} if "eval_split" in options else {}
    return {**kept, **split, **options.get("eval_env_kwargs", {})}


def carried_options(env: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run's environment that apply to another environment, `env`, too.

    Left out are `instructions`, which name tasks, and options that the family of `env` does not have, such as
    LIBERO's `sampled_starts` for LIBERO-PRO.
    """
    known = known_options(env)
    return {name: value for name, value in options.items() if name in known and name != "instructions"}


def check_same_robot(evaluated: Benchmark, trained: Benchmark) -> None:
    """Raise `BadValue` for an environment in which a policy of another cannot act."""
    for what, of_evaluated, of_trained in (
        ("numbers in an action", evaluated.action_dim, trained.action_dim),
        ("convention of actions", evaluated.action_spec, trained.action_spec),
        ("numbers in a state", evaluated.state_dim, trained.state_dim),
        ("cameras", evaluated.cameras, trained.cameras),
    ):
        if of_evaluated != of_trained:
            raise BadValue(
                f"--eval-env {evaluated.id} cannot evaluate a policy of {trained.id}: {what} are {of_evaluated}, "
                f"not {of_trained}"
            )
