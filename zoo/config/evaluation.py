"""How success is measured: the protocol that flags and published rows fill, and what evaluations of a run differ in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TypedDict

from vla_gym.errors import BadValue
from vla_gym.make import known_options
from vla_gym.specs import Benchmark
from zoo.config.settings import Count, CountOrZero, Options, Positive, Settings, annotations_of, check_value


@dataclass(frozen=True, kw_only=True)
class EvaluationProtocol:
    """Settings that two success rates must share to be compared, the weights aside."""

    sample: bool = False
    """Draw actions from the policy's distribution, instead of its deterministic ones."""
    temperature: Positive | None = None
    """Of drawn action tokens; None = the policy's own."""
    top_k: CountOrZero | None = None
    """Draw among the k likeliest tokens, 0 = all; None = the policy's own."""
    rounds: Count = 1
    """Episodes of every start state, each with noise of its own."""
    start_states: int | None = None
    """Number of start states, as `choose_start_states` spreads them over the tasks; None = the whole grid."""
    split: str | None = None
    """Split of the start states; None = the run's or the recipe's."""
    env_kwargs: Options = field(default_factory=dict)
    """The benchmark's own options; its `protocol` sets horizons and settle steps."""

    def __post_init__(self) -> None:
        """Raise `BadValue` for numbers out of range, and for settings of drawn actions where none are drawn."""
        for name in ("temperature", "top_k", "rounds"):
            check_value(annotations_of(EvaluationProtocol)[name], getattr(self, name), name)
        if self.sampling and not self.sample:
            raise BadValue("temperature and top_k are of sampled actions, and these are to be deterministic")

    @property
    def sampling(self) -> Settings:
        """The settings of `VLAPolicy` that stand above the checkpoint's."""
        given = {"temperature": self.temperature, "top_k": self.top_k}
        return {name: value for name, value in given.items() if value is not None}

    def to_json(self) -> Settings:
        """JSON values, for `protocol` in an evaluation's record and in a run folder."""
        return asdict(self)


class EvalOptions(TypedDict, total=False):
    """Settings of evaluations during training; without them the policy's deterministic actions, as it is trained."""

    eval_env: str
    """Evaluate there, e.g. on held-out tasks, which need the same actions; none: in the run's environment."""
    eval_split: str
    """Start states of another split, e.g. test; none: the run's own."""
    eval_env_kwargs: Options
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


def evaluation_protocol(options: Options, env_options: Options, start_states: int) -> EvaluationProtocol:
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


def carried_options(env: str, options: Mapping[str, object]) -> Settings:
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
