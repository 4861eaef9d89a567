"""Experts replayed through our environments: where they fail, the conventions are wrong and not a policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from vla_gym import find_benchmark, make_vec
from vla_gym.specs import Benchmark
from zoo.demonstrations import demonstrate
from zoo.evaluation import Rate, choose_cells
from zoo.experts.base import expert_class
from zoo.experts.known_rates import known_rate

MOST_ENVS = 4
"""Simulators side by side; without pictures each needs little."""
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
        lines.append(ADVICE if self.below else "as it should be")
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
    solved: list[tuple[int, bool]] = []
    try:
        for begin in range(0, len(cells), num_envs):
            wave = [(cell, 0) for cell in cells[begin : begin + num_envs]]
            shown = demonstrate(envs, make_expert, wave)
            solved += [(one.start.task_id, one.success) for one in shown]
            on_episodes(len(solved))
    finally:
        envs.close()
    return judge(benchmark, solved)


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
