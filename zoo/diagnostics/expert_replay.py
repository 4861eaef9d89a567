"""Experts replayed through our environments: a failure means wrong conventions, not a bad policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vla_gym import find_benchmark, make_vec
from vla_gym.specs import Benchmark, StartState, Task
from vla_gym.vector.vector_env import VLAVectorEnv
from zoo.demonstrations.recorder import demonstrate
from zoo.diagnostics.action_convention_errors import action_convention_errors, corrected
from zoo.diagnostics.expert_success_rates import expert_success_rate
from zoo.evaluation.evaluator import choose_start_states
from zoo.evaluation.statistics import Rate, together
from zoo.experts import Expert, expert_class

MOST_ENVS = 4
"""Simulators side by side; without pictures each needs little."""
MOST_REPLAYED = 8
"""Failed episodes that are replayed to find the cause."""
HEADER = "success    95 % interval      k/n    task"
ADVICE = (
    "worse than it should be: the environment does not take actions as declared (scale, gripper sign, frame), or its "
    "packages are others than `pip install` brings"
)


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """Success of a replayed expert, beside its measured success."""

    tasks: tuple[Rate, ...]
    """Of each task that was tried."""
    overall: Rate
    """All episodes."""
    known: Rate | None
    """The same tasks when they were measured; None where one was not."""
    cause: str | None = None
    """The wrong convention, where replays of failed episodes found one."""

    @property
    def below(self) -> bool:
        """Whether it is worse than known, both intervals apart; with nothing known, whether every episode failed."""
        if self.known is None:
            return self.overall.successes == 0
        return self.overall.interval[1] < self.known.interval[0]

    def __str__(self) -> str:
        rows = [*self.tasks, self.overall] if len(self.tasks) > 1 else [self.overall]
        lines = [HEADER, *map(_row, rows)]
        if self.known is None:
            lines.append("nothing to compare with: this expert has not been measured on these tasks")
        else:
            lines.append(f"{_row(self.known)}: when it was measured")
        lines.append((self.cause or ADVICE) if self.below else "as it should be")
        return "\n".join(lines)


def replay(
    env_id: str,
    episodes: int | None,
    options: Mapping[str, Any] | None = None,
    *,
    on_episodes: Callable[[int], None] = lambda done: None,
) -> ReplayResult:
    """Let the expert of `env_id` act, no pictures drawn; `episodes` as of `choose_start_states`.

    `options` are the benchmark's.

    Raises `BadValue` where there is no expert, or for more episodes than there are start states.
    """
    benchmark = replace(find_benchmark(env_id, **(options or {})), cameras=())
    make_expert = expert_class(benchmark)
    starts = choose_start_states(benchmark.tasks, episodes)
    num_envs = min(MOST_ENVS, len(starts))
    envs = make_vec(benchmark, num_envs, chunk=1, privileged=True, autoreset_mode="disabled")
    try:
        outcomes = list(zip(starts, _outcomes(envs, make_expert, starts, on_episodes), strict=True))
        result = summarize(benchmark, [(start.task_id, success) for start, success in outcomes])
        if not result.below:
            return result
        failed = [start for start, success in outcomes if not success]
        return replace(result, cause=_cause(envs, make_expert, failed[:MOST_REPLAYED]))
    finally:
        envs.close()


def _outcomes(
    envs: VLAVectorEnv,
    make_expert: Callable[[Task], Expert],
    starts: Sequence[StartState],
    on_episodes: Callable[[int], None] = lambda done: None,
) -> list[bool]:
    """Success from each start state."""
    solved: list[bool] = []
    for begin in range(0, len(starts), envs.num_envs):
        batch = [(start, 0) for start in starts[begin : begin + envs.num_envs]]
        solved += [episode.success for episode in demonstrate(envs, make_expert, batch)]
        on_episodes(len(solved))
    return solved


def _cause(envs: VLAVectorEnv, make_expert: Callable[[Task], Expert], failed: Sequence[StartState]) -> str | None:
    """The error that, undone, lets most of the failed episodes succeed; None unless it is just one."""
    found = []
    for error, matrix_AA in action_convention_errors(envs.benchmark).items():
        solved = sum(_outcomes(envs, corrected(make_expert, matrix_AA), failed))
        if 2 * solved > len(failed):
            found.append(f"{error}: with that undone, {solved} of {len(failed)} failed episodes succeed")
    return found[0] if len(found) == 1 else None


def summarize(benchmark: Benchmark, outcomes: list[tuple[int, bool]]) -> ReplayResult:
    """Count (task id, success) per task and over all, beside the measured rate of the same tasks."""
    by_task: dict[int, list[bool]] = {}
    for task_id, success in sorted(outcomes):
        by_task.setdefault(task_id, []).append(success)
    tasks = tuple(
        Rate(label=benchmark.tasks[task_id].name, successes=sum(successes), episodes=len(successes))
        for task_id, successes in by_task.items()
    )
    return ReplayResult(
        tasks=tasks,
        overall=together("all episodes", tasks),
        known=expert_success_rate([benchmark.tasks[task_id] for task_id in by_task]),
    )


def _row(rate: Rate) -> str:
    low, high = rate.interval
    counts = f"{rate.successes}/{rate.episodes}"
    return f"{rate.mean:>7.1%}  [{low:>6.1%}, {high:>6.1%}]  {counts:>7}    {rate.label}"
