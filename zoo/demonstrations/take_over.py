"""Records experts that take over: demonstrations from states to which the expert itself would not have come.

Imitation errs where its own errors lead, which an expert's demonstrations do not show (Ross et al. 2011, DAgger,
arXiv:1011.0686). A policy that decides chunks cannot be corrected step by step: the K actions that an expert would say
along the student's path are no chunk that it would play. So the two take turns as in HG-DAgger (Kelly et al. 2019,
arXiv:1810.02890): the student begins, at a random decision the expert takes over and finishes, and the dataset holds
what the expert played.

Before there is a student the arm can wander. An expert goes straight to its thing, so after its first steps the arm's
own place tells where the thing is, and a policy learns to read that instead of the picture (de Haan et al. 2019,
"Causal Confusion in Imitation Learning", arXiv:1905.11979). An arm that was moved at random tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from vla_gym.specs import Task
from vla_gym.vector.vector_env import VLAVectorEnv
from zoo.demonstrations.policy_recorder import ActingPolicy, PolicyActor, RolloutRules
from zoo.demonstrations.recorder import (
    PRIVILEGED,
    Actor,
    Attempt,
    Choice,
    Demonstration,
    expert_choice,
    experts_of,
    generators_of,
    record,
)
from zoo.experts import Expert

HOLD = 5
"""Steps for which an arm that wanders is moved alike: with another action each step it would stay where it is."""


class Leader(Protocol):
    """Begins episodes."""

    def act(self, obs: Mapping[str, Any], live: Sequence[int]) -> Mapping[int, Choice]:
        """Return a choice for each environment of `live`."""


def take_over(
    envs: VLAVectorEnv,
    student: ActingPolicy,
    make_expert: Callable[[Task], Expert],
    attempts: Sequence[Attempt],
    first: int,
    *,
    deterministic: bool,
    share: float,
    noise: float = 0.0,
    seed: int = 0,
) -> list[Demonstration]:
    """One episode for each attempt, at most as many as environments, all at once; in their order.

    `envs`: chunk 1, `privileged`, autoreset DISABLED. The student plays up to `share` of an episode's horizon, see
    `led_steps`; an episode that ends before that has no frames. `noise` is added to the expert's executed actions,
    as by `demonstrate`; `first` is the number of the first attempt among all, see `roll_out`.
    """
    rules = RolloutRules(deterministic=deterministic, seed=seed, gamma=1.0, gae_lambda=1.0, values=False)
    generators = generators_of(attempts, seed)
    steps = _led_steps(envs, attempts, student.conventions.chunk, share, generators)
    turns = _Turns(
        PolicyActor(student, first, rules), experts_of(envs, make_expert, attempts), generators, steps, noise
    )
    return record(envs, turns, attempts)


def wander(
    envs: VLAVectorEnv,
    make_expert: Callable[[Task], Expert],
    attempts: Sequence[Attempt],
    *,
    share: float,
    noise: float = 0.0,
    seed: int = 0,
) -> list[Demonstration]:
    """As `take_over`, but up to `share` of the horizon the arm is moved at random, see `Wandering`."""
    generators = generators_of(attempts, seed)
    steps = _led_steps(envs, attempts, 1, share, generators)
    leader = Wandering(generators, envs.benchmark.action_dim)
    return record(envs, _Turns(leader, experts_of(envs, make_expert, attempts), generators, steps, noise), attempts)


def led_steps(horizon: int, chunk: int, share: float, generator: np.random.Generator) -> int:
    """Steps before the expert takes over: whole chunks, uniform from none to `share` of the horizon."""
    return chunk * int(generator.integers(0, int(share * horizon / chunk) + 1))


class Wandering:
    """Actions uniform in [-1, 1], each held for `HOLD` steps; a generator for each environment. A `Leader`."""

    def __init__(self, generators: Sequence[np.random.Generator], action_dim: int) -> None:
        self._generators, self._action_dim = generators, action_dim
        self._step = 0
        self._held: dict[int, np.ndarray] = {}

    def act(self, obs: Mapping[str, Any], live: Sequence[int]) -> dict[int, Choice]:
        if self._step % HOLD == 0:
            self._held = {
                env: self._generators[env].uniform(-1.0, 1.0, self._action_dim).astype(np.float32) for env in live
            }
        self._step += 1
        return {env: Choice(action_A=self._held[env], executed_A=self._held[env]) for env in live}


def _led_steps(
    envs: VLAVectorEnv,
    attempts: Sequence[Attempt],
    chunk: int,
    share: float,
    generators: Sequence[np.random.Generator],
) -> list[int]:
    horizons = [envs.benchmark.tasks[start.task_id].horizon for start, _ in attempts]
    return [led_steps(horizon, chunk, share, drawn) for horizon, drawn in zip(horizons, generators, strict=True)]


class _Turns(Actor):
    """A leader, then an expert, in each environment."""

    def __init__(
        self,
        leader: Leader,
        experts: Sequence[Expert],
        generators: Sequence[np.random.Generator],
        led_steps: Sequence[int],
        noise: float,
    ) -> None:
        self._leader, self._experts, self._generators = leader, experts, generators
        self._led_steps, self._noise = led_steps, noise
        self._step = 0

    def act(self, obs: Mapping[str, Any], live: Sequence[int]) -> dict[int, Choice]:
        led = [env for env in live if self._step < self._led_steps[env]]
        shown = {key: value for key, value in obs.items() if key != "privileged"}
        chosen = self._leader.act(shown, led) if led else {}
        choices = {
            env: Choice(
                action_A=one.action_A,
                executed_A=one.executed_A,
                extra={PRIVILEGED: obs["privileged"][env].astype(np.float32)},
                kept=False,
            )
            for env, one in chosen.items()
        }
        self._step += 1
        for env in live:
            if env not in choices:
                privileged_P = obs["privileged"][env]
                choices[env] = expert_choice(self._experts[env], privileged_P, self._generators[env], self._noise)
        return choices
