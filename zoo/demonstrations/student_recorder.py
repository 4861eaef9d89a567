"""Records experts that take over from a student: demonstrations from the states that a policy brings about itself.

Imitation errs where its own errors lead, which an expert's demonstrations do not show (Ross et al. 2011, DAgger,
arXiv:1011.0686). A policy that decides chunks cannot be corrected step by step: the K actions that an expert would say
along the student's path are no chunk that it would play. So the two take turns as in HG-DAgger (Kelly et al. 2019,
arXiv:1810.02890): the student begins, at a random decision the expert takes over and finishes, and the dataset holds
what the expert played.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vla_gym.specs import Task
from vla_gym.vector.vector_env import VLAVectorEnv
from zoo.demonstrations.policy_recorder import ActingPolicy, PolicyActor, RolloutRules
from zoo.demonstrations.recorder import PRIVILEGED, Attempt, Choice, Demonstration, expert_choice, record
from zoo.experts.base import Expert


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
    `student_steps`; an episode that ends before that has no frames. `noise` is added to the expert's executed actions,
    as by `demonstrate`; `first` is the number of the first attempt among all, see `roll_out`.
    """
    tasks = envs.benchmark.tasks
    chunk = student.conventions.chunk
    rules = RolloutRules(deterministic=deterministic, seed=seed, gamma=1.0, gae_lambda=1.0, values=False)
    # What an attempt draws follows from (seed, start state, round) alone.
    generators = [np.random.default_rng([seed, s.task_id, s.trial_id, number]) for s, number in attempts]
    steps = [
        student_steps(tasks[start.task_id].horizon, chunk, share, generator)
        for (start, _), generator in zip(attempts, generators, strict=True)
    ]
    experts = [make_expert(tasks[start.task_id]) for start, _ in attempts]
    return record(envs, _Turns(PolicyActor(student, first, rules), experts, generators, steps, noise), attempts)


def student_steps(horizon: int, chunk: int, share: float, generator: np.random.Generator) -> int:
    """Steps that the student plays: whole chunks, uniform from none to `share` of the horizon."""
    return chunk * int(generator.integers(0, int(share * horizon / chunk) + 1))


class _Turns:
    """A student, then an expert, in each environment; see `zoo.demonstrations.recorder.Actor`."""

    def __init__(
        self,
        student: PolicyActor,
        experts: Sequence[Expert],
        generators: Sequence[np.random.Generator],
        student_steps: Sequence[int],
        noise: float,
    ) -> None:
        self._student, self._experts, self._generators = student, experts, generators
        self._student_steps, self._noise = student_steps, noise
        self._step = 0

    def act(self, obs: Mapping[str, Any], live: Sequence[int]) -> dict[int, Choice]:
        learning = [env for env in live if self._step < self._student_steps[env]]
        shown = {key: value for key, value in obs.items() if key != "privileged"}
        chosen = self._student.act(shown, learning) if learning else {}
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

    def ended(self, obs: Mapping[str, Any], env: int, *, terminated: bool) -> None:
        pass
