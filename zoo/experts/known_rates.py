"""How often experts succeeded when they were measured, per task: what `zoo.doctor --oracle` compares with.

Regenerate a block with `python -m zoo.doctor --oracle --env ID --episodes N`.
"""

from __future__ import annotations

from collections.abc import Iterable

from vla_gym.specs import Task
from zoo.evaluation import Rate

EPISODES = 50
"""Start states each task was measured on: all of the training split."""

_LIBERO: dict[str, dict[str, int]] = {}
"""Suite -> task -> start states solved within the default protocol's horizon."""
_MANISKILL = {"PickCube": 50, "PushCube": 50, "PullCube": 50, "StackCube": 49, "PlaceSphere": 50}
"""Task -> start states solved, the first of the training split, on CPU physics."""
_META_WORLD: dict[int, dict[str, int]] = {
    100: {
        "reach": 50,
        "push": 50,
        "pick-place": 50,
        "door-open": 43,
        "drawer-open": 50,
        "drawer-close": 50,
        "button-press-topdown": 50,
        "peg-insert-side": 25,
        "window-open": 50,
        "window-close": 50,
    },
    160: {"door-open": 47, "peg-insert-side": 43},
    500: {"door-open": 47, "peg-insert-side": 45},
}
"""Horizon -> task -> start states solved within it."""


def known_rate(tasks: Iterable[Task]) -> Rate | None:
    """All the tasks together, within the longest measured horizon that is no longer than theirs; None if one is new."""
    solved = [_solved(task) for task in tasks]
    if not solved or None in solved:
        return None
    return Rate(
        label="known",
        successes=sum(count for count in solved if count is not None),
        episodes=EPISODES * len(solved),
    )


def _solved(task: Task) -> int | None:
    if task.suite in _LIBERO:
        return _LIBERO[task.suite].get(task.name)
    if task.suite == "maniskill":
        return _MANISKILL.get(task.name)
    within = [
        table[task.name]
        for horizon, table in sorted(_META_WORLD.items())
        if horizon <= task.horizon and task.name in table
    ]
    return within[-1] if within else None
