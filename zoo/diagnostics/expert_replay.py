"""Experts replayed through our environments, beside their measured success.

A failure means that the environment does not take actions as declared: no policy is at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from vla_gym import find_benchmark, make_vec
from vla_gym.adapters.metaworld.tasks import MT10
from vla_gym.specs import Task
from zoo.config.settings import Options
from zoo.demonstrations.recorder import demonstrate
from zoo.evaluation.evaluator import choose_start_states
from zoo.evaluation.statistics import Rate, together
from zoo.experts import expert_class

MOST_ENVS = 4
"""Simulators side by side; without images each needs little."""
ADVICE = (
    "worse than it should be: the environment does not take actions as declared (scale, gripper sign, frame), or its "
    "packages are others than `pip install` brings"
)
_LIBERO = {
    "libero_object": (
        *("alphabet_soup", "cream_cheese", "salad_dressing", "bbq_sauce", "ketchup"),
        *("tomato_sauce", "butter", "milk", "chocolate_pudding", "orange_juice"),
    ),
    "libero_spatial": (
        *("black_bowl_between_the_plate_and_the_ramekin", "black_bowl_next_to_the_ramekin"),
        *("black_bowl_from_table_center", "black_bowl_on_the_cookie_box", "black_bowl_on_the_ramekin"),
        *("black_bowl_in_the_top_drawer_of_the_wooden_cabinet", "black_bowl_next_to_the_cookie_box"),
        *("black_bowl_on_the_stove", "black_bowl_next_to_the_plate", "black_bowl_on_the_wooden_cabinet"),
    ),
}
"""Suite -> measured tasks, `THING` of "pick_up_the_THING_and_place_it_...", on their first 20 start states."""
_MANISKILL = ("PickCube", "PushCube", "PullCube", "StackCube", "PlaceSphere")
"""Measured on CPU physics, on the first 50 start states of the training split, as Meta-World's MT10."""
_META_WORLD_HORIZON = 100
"""Steps within which MT10 was measured."""
_FAILED = {"black_bowl_in_the_top_drawer_of_the_wooden_cabinet": 1, "StackCube": 1}
"""Task -> start states that its expert did not solve; the others' experts solved all."""


def expert_success_rate(tasks: Iterable[Task]) -> Rate | None:
    """Return the measured rate of experts on all tasks together; None where one was not measured.

    Measure again with `vla-zoo doctor --oracle --env ID --episodes N`.
    """
    rates = []
    for task in tasks:
        name, episodes = task.name, 50
        if task.suite in _LIBERO:
            name, episodes = name.removeprefix("pick_up_the_").partition("_and_place_it_")[0], 20
            measured = name in _LIBERO[task.suite]
        elif task.suite == "maniskill":
            measured = name in _MANISKILL
        else:
            measured = name in MT10 and task.horizon >= _META_WORLD_HORIZON
        if not measured:
            return None
        rates.append(Rate(label=name, successes=episodes - _FAILED.get(name, 0), episodes=episodes))
    return together("when it was measured", rates) if rates else None


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """Success of a replayed expert, beside its measured success."""

    tasks: tuple[Rate, ...]
    """Of each task that was tried."""
    known: Rate | None
    """The same tasks when they were measured; None where one was not."""

    @property
    def overall(self) -> Rate:
        """All episodes."""
        return together("all episodes", self.tasks)

    @property
    def below(self) -> bool:
        """Whether it is worse than known, both intervals apart; with nothing known, whether every episode failed."""
        if self.known is None:
            return self.overall.successes == 0
        return self.overall.interval[1] < self.known.interval[0]

    def __str__(self) -> str:
        rows = [*(self.tasks if len(self.tasks) > 1 else ()), self.overall, *([self.known] if self.known else ())]
        lines = ["success    95 % interval      k/n    task", *map(_row, rows)]
        if self.known is None:
            lines.append("nothing to compare with: this expert has not been measured on these tasks")
        return "\n".join([*lines, ADVICE if self.below else "as it should be"])


def replay(
    env_id: str,
    episodes: int | None,
    options: Options | None = None,
    *,
    on_episodes: Callable[[int], None] = lambda done: None,
) -> ReplayResult:
    """Let the expert of `env_id` act, without images; `episodes` as of `choose_start_states`.

    `options` are the benchmark's. Raises `BadValue` where there is no expert, or for more episodes than there are
    start states.
    """
    benchmark = replace(find_benchmark(env_id, **(options or {})), cameras=())
    make_expert = expert_class(benchmark)
    starts = choose_start_states(benchmark.tasks, episodes)
    envs = make_vec(benchmark, min(MOST_ENVS, len(starts)), chunk=1, privileged=True, autoreset_mode="disabled")
    solved: list[tuple[int, bool]] = []
    try:
        for begin in range(0, len(starts), envs.num_envs):
            batch = starts[begin : begin + envs.num_envs]
            played = demonstrate(envs, make_expert, [(start, 0) for start in batch])
            solved += [(start.task_id, episode.success) for start, episode in zip(batch, played, strict=True)]
            on_episodes(len(solved))
    finally:
        envs.close()
    return summarize(benchmark.tasks, solved)


def summarize(tasks: tuple[Task, ...], outcomes: list[tuple[int, bool]]) -> ReplayResult:
    """Count (task id, success) per task, beside the measured rate of the same tasks."""
    by_task: dict[int, list[bool]] = {}
    for task_id, success in sorted(outcomes):
        by_task.setdefault(task_id, []).append(success)
    return ReplayResult(
        tasks=tuple(
            Rate(label=tasks[task_id].name, successes=sum(successes), episodes=len(successes))
            for task_id, successes in by_task.items()
        ),
        known=expert_success_rate([tasks[task_id] for task_id in by_task]),
    )


def _row(rate: Rate) -> str:
    low, high = rate.interval
    counts = f"{rate.successes}/{rate.episodes}"
    return f"{rate.mean:>7.1%}  [{low:>6.1%}, {high:>6.1%}]  {counts:>7}    {rate.label}"
