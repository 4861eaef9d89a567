"""The tasks that a policy was trained on before, by the protocols of the runs that made it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress

from vla_gym.errors import VLAZooError
from vla_gym.specs import Task
from zoo.files import content_of, read_json
from zoo.runs.folder import PROTOCOL_FILE, RunFolder
from zoo.runs.lookup import find_run
from zoo.runs.shipped_agents import PREFIX, is_shipped, local_or_shipped

_logger = logging.getLogger(__name__)


def trained_before(policy: str, tasks: Sequence[Task]) -> dict[str, list[int]]:
    """Return the indices of those `tasks` that `policy` was trained on, and of the others, by a label of each.

    Empty unless it has of both: for fresh weights and policies from elsewhere. A policy that went on from another one
    knows the tasks of both.
    """
    runs = list(_runs_behind(policy))
    trained = {task for run in runs for task in _tasks(run)}
    known = [task_id for task_id, task in enumerate(tasks) if (task.suite, task.name) in trained]
    if len(known) in (0, len(tasks)):
        return {}
    newest = runs[0].path
    name = f"{PREFIX}/{newest.parent.name}/{newest.name}" if is_shipped(newest) else policy
    others = sorted(set(range(len(tasks))) - set(known))
    return {f"tasks that {name} was trained on": known, "tasks that are new to it": others}


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
    """Return (suite, name) of the tasks in the run's protocol."""
    file = run.path / PROTOCOL_FILE
    if not file.is_file():
        return []
    try:
        with content_of(file):
            return [(str(task["suite"]), str(task["name"])) for task in read_json(file)["tasks"]]
    except VLAZooError as error:
        _logger.warning(f"not known on what '{run.path}' was trained: {error}")
        return []
