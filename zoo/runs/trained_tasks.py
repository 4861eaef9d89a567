"""The tasks that a policy was trained on before, by the records of the runs that made it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from vla_gym.errors import VLAZooError
from vla_gym.specs import Task
from zoo.files import read_json
from zoo.runs.folder import PROTOCOL_FILE, RESULTS_FILE, RunFolder
from zoo.runs.lookup import find_run
from zoo.runs.shipped_agents import PREFIX, is_shipped, local_or_shipped

_MOST_SHOWN = 10
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainedTasks:
    """What a policy was trained on before a run goes on from it."""

    policy: str
    """As the run names it; a trained agent by its name."""
    tasks: frozenset[tuple[str, str]]
    """(suite, task name)."""
    solved: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Task name -> episodes it solved, of how many, where its record says so."""

    def among(self, tasks: Sequence[Task]) -> list[int]:
        """Return the indices of those `tasks` that it was trained on."""
        return [task_id for task_id, task in enumerate(tasks) if (task.suite, task.name) in self.tasks]

    def groups(self, tasks: Sequence[Task]) -> dict[str, list[int]]:
        """Return the indices of `tasks` that it was trained on, and of the others; nothing unless it has of both."""
        known = self.among(tasks)
        new = [task_id for task_id in range(len(tasks)) if task_id not in set(known)]
        return {f"tasks that {self.policy} was trained on": known, "tasks that are new to it": new} if new else {}

    def lines(self, tasks: Sequence[Task]) -> list[str]:
        """Return what it knows of a run's `tasks`, for the screen; nothing where it knows all of them or none."""
        known = self.among(tasks)
        if not known or len(known) == len(tasks):
            return []
        told = [
            f"     {self._solved(tasks[task_id].name)}  {tasks[task_id].instruction}" for task_id in known[:_MOST_SHOWN]
        ]
        more = [f"     and {len(known) - _MOST_SHOWN} more"] if len(known) > _MOST_SHOWN else []
        counted = " (episodes it solved of them)" if self.solved else ""
        return [f"knows        {self.policy} was trained on {len(known)} of these tasks{counted}:", *told, *more]

    def _solved(self, name: str) -> str:
        return "{:>3} of {:<3}".format(*self.solved[name]) if name in self.solved else "-"


def trained_tasks(policy: str) -> TrainedTasks | None:
    """Return what the runs here that made `policy` trained on; None for fresh weights and policies from elsewhere.

    A policy that went on from another one knows the tasks of both.
    """
    runs = list(_runs_behind(policy))
    if not runs:
        return None
    newest = runs[0].path
    shipped = is_shipped(newest)
    return TrainedTasks(
        policy=f"{PREFIX}/{newest.parent.name}/{newest.name}" if shipped else policy,
        tasks=frozenset(task for run in runs for task in _tasks(run)),
        solved=_solved(runs[0]) if shipped else {},
    )


def _runs_behind(policy: str) -> Iterator[RunFolder]:
    """Yield the run that made the policy, then the one that made the policy it began with, and so on."""
    seen = set()
    # A policy from elsewhere has no run here, and an agent's former policy is not kept.
    with suppress(VLAZooError):
        while local_or_shipped(policy).is_dir():
            run = find_run(policy)
            if run.path.resolve() in seen:
                return
            seen.add(run.path.resolve())
            yield run
            policy = run.config().policy


def _tasks(run: RunFolder) -> list[tuple[str, str]]:
    file = run.path / PROTOCOL_FILE
    try:
        return [(str(task["suite"]), str(task["name"])) for task in read_json(file)["tasks"]] if file.is_file() else []
    except (VLAZooError, LookupError, TypeError) as error:
        _logger.warning(f"not known on what '{run.path}' was trained: {_reason(file, error)}")
        return []


def _solved(run: RunFolder) -> dict[str, tuple[int, int]]:
    """Return task name -> (solved, episodes) of an agent's test, on the training split if it has both."""
    file = run.path / RESULTS_FILE
    if not file.is_file():
        return {}
    try:
        splits = read_json(file)
        tasks = splits["train" if "train" in splits else "test"]["tasks"]
        return {task["name"]: (int(task["successes"]), int(task["episodes"])) for task in tasks}
    except (VLAZooError, LookupError, TypeError, ValueError) as error:
        _logger.warning(f"not known what '{run.path}' solved: {_reason(file, error)}")
        return {}


def _reason(file: Path, error: Exception) -> str:
    return str(error) if isinstance(error, VLAZooError) else f"'{file}' does not list its tasks"
