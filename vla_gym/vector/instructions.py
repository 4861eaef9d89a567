"""A benchmark with other instructions, for `make_vec(..., instructions=...)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from vla_gym.errors import BadValue, unknown_name
from vla_gym.observation import check_instruction
from vla_gym.specs import Benchmark, Task

Instructions = Mapping[str, str] | Callable[[Task], str]
"""Task name -> text (tasks left out keep theirs), or a function, called once for every task."""


def with_instructions(benchmark: Benchmark, instructions: Instructions) -> Benchmark:
    """Return the benchmark with other instructions; nothing else about its tasks changes.

    Raises `UnknownName` for a task that does not exist and `BadValue` for a text that is not allowed.
    """
    texts = _texts(benchmark, instructions)
    for name, text in texts.items():
        if not isinstance(text, str):
            raise BadValue(f"instruction of task '{name}' must be a text, got {type(text).__name__}")
        check_instruction(text)
    tasks = (dataclasses.replace(task, instruction=texts.get(task.name, task.instruction)) for task in benchmark.tasks)
    return dataclasses.replace(benchmark, tasks=tuple(tasks))


def changed_instructions(before: Benchmark, after: Benchmark) -> dict[str, str]:
    """Task name -> the benchmark's own instruction, of the tasks whose instruction differs."""
    pairs = zip(before.tasks, after.tasks, strict=True)
    return {old.name: old.instruction for old, new in pairs if old.instruction != new.instruction}


def _texts(benchmark: Benchmark, instructions: Instructions) -> dict[str, str]:
    if callable(instructions):
        return {task.name: instructions(task) for task in benchmark.tasks}
    if not isinstance(instructions, Mapping):
        raise BadValue(
            f"instructions must map task names to texts, or be a function of a task, got {type(instructions).__name__}"
        )
    names = {task.name for task in benchmark.tasks}
    for name in instructions:
        if name not in names:
            raise unknown_name(f"task of {benchmark.id}", str(name), names)
    return dict(instructions)
