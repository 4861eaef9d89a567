"""Experts replayed through our environments: where they fail, the conventions are wrong and not a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vla_gym import find_benchmark, make_vec
from vla_gym.specs import Benchmark, StartState, Task
from vla_gym.vector.vector_env import VLAVectorEnv
from zoo.demonstrations.recorder import demonstrate
from zoo.diagnostics.action_convention_errors import changed, misreadings
from zoo.diagnostics.expert_success_rates import known_rate
from zoo.evaluation.evaluator import Rate, choose_cells
from zoo.experts.base import Expert, expert_class

MOST_ENVS = 4
"""Simulators side by side; without pictures each needs little."""
MOST_REPLAYED = 8
"""Failed episodes that are replayed to find out why."""
HEADER = "success    95 % interval      k/n    task"
ADVICE = (
    "worse than it should be: the environment does not take actions as declared (scale, gripper sign, frame), or its "
    "packages are others than `pip install` brings"
)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a replay came to."""

    tasks: tuple[Rate, ...]
    """Of each task that was tried."""
    overall: Rate
    """All episodes."""
    known: Rate | None
    """The same tasks when they were measured; None where one was not."""
    cause: str | None = None
    """Which convention is wrong, where replaying failed episodes told."""

    @property
    def below(self) -> bool:
        """Is it worse than known, both intervals apart? With nothing known: did every episode fail?"""
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
    *,
    on_episodes: Callable[[int], None] = lambda done: None,
    **options: Any,
) -> Verdict:
    """Let the expert of `env_id` act, no pictures drawn; `episodes` as of `choose_cells`.

    Raises `BadValue` where there is no expert, or for more episodes than there are start states.
    """
    benchmark = replace(find_benchmark(env_id, **options), cameras=())
    make_expert = expert_class(benchmark)
    cells = choose_cells(benchmark.tasks, episodes)
    num_envs = min(MOST_ENVS, len(cells))
    envs = make_vec(benchmark, num_envs, chunk=1, privileged=True, autoreset_mode="disabled")
    try:
        solved = _outcomes(envs, make_expert, cells, on_episodes)
        verdict = judge(
            benchmark, [(cell.task_id, success) for cell, success in zip(cells, solved, strict=True)]
        )
        if not verdict.below:
            return verdict
        failed = [cell for cell, success in zip(cells, solved, strict=True) if not success]
        return replace(verdict, cause=_cause(envs, make_expert, failed[:MOST_REPLAYED]))
    finally:
        envs.close()


def _outcomes(
    envs: VLAVectorEnv,
    make_expert: Callable[[Task], Expert],
    cells: Sequence[StartState],
    on_episodes: Callable[[int], None] = lambda done: None,
) -> list[bool]:
    """Success from each cell."""
    solved: list[bool] = []
    for begin in range(0, len(cells), envs.num_envs):
        wave = [(cell, 0) for cell in cells[begin : begin + envs.num_envs]]
        solved += [one.success for one in demonstrate(envs, make_expert, wave)]
        on_episodes(len(solved))
    return solved


def _cause(
    envs: VLAVectorEnv, make_expert: Callable[[Task], Expert], failed: Sequence[StartState]
) -> str | None:
    """The misreading of actions that, undone, lets most of the failed episodes succeed; None unless it is just one."""
    found = []
    for wrong, matrix_AA in misreadings(envs.benchmark).items():
        solved = sum(_outcomes(envs, changed(make_expert, matrix_AA), failed))
        if 2 * solved > len(failed):
            found.append(f"{wrong}: with that undone, {solved} of {len(failed)} failed episodes succeed")
    return found[0] if len(found) == 1 else None


def judge(benchmark: Benchmark, solved: list[tuple[int, bool]]) -> Verdict:
    """Counts of (task id, success) per task and over all, beside what is known of the same tasks."""
    tried = sorted({task_id for task_id, _ in solved})
    outcomes = {task_id: [success for other, success in solved if other == task_id] for task_id in tried}
    tasks = tuple(
        Rate(label=benchmark.tasks[task_id].name, successes=sum(one), episodes=len(one))
        for task_id, one in outcomes.items()
    )
    return Verdict(
        tasks=tasks,
        overall=Rate(
            label="all episodes",
            successes=sum(rate.successes for rate in tasks),
            episodes=sum(rate.episodes for rate in tasks),
        ),
        known=known_rate([benchmark.tasks[task_id] for task_id in tried]),
    )


def _row(rate: Rate) -> str:
    low, high = rate.interval
    counts = f"{rate.successes}/{rate.episodes}"
    return f"{rate.mean:>7.1%}  [{low:>6.1%}, {high:>6.1%}]  {counts:>7}    {rate.label}"
