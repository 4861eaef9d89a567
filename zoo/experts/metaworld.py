"""Experts of Meta-World: its own scripted policies, through our actions, and controllers of ours for two tasks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from vla_gym.adapters.metaworld.tasks import expert_name
from vla_gym.specs import Task
from zoo.experts.metaworld_controllers import AIMS, arm_action


class MetaWorldExpert:
    """Ours of `AIMS`, else the class of `metaworld.policies` for a task; see `zoo.experts.base.Expert`."""

    def __init__(self, task: Task) -> None:
        self._act = _ours(task.name) if task.name in AIMS else _scripted(task.name)

    def action(self, privileged_P: np.ndarray) -> np.ndarray:
        """Proportional control towards the next waypoint, cut to the range of an action: float32 `[4]`."""
        return self._act(privileged_P)


def _ours(name: str) -> Callable[[np.ndarray], np.ndarray]:
    return lambda privileged_P: arm_action(privileged_P, AIMS[name](privileged_P))


def _scripted(name: str) -> Callable[[np.ndarray], np.ndarray]:
    # Loads MuJoCo and every task's class, which takes seconds.
    from metaworld import policies

    scripted: Any = getattr(policies, expert_name(name))()

    def act(privileged_P: np.ndarray) -> np.ndarray:
        with warnings.catch_warnings():
            # Some of them say at every step that their gain is too high for the range of an action.
            warnings.simplefilter("ignore", UserWarning)
            raw_A = scripted.get_action(privileged_P)
        return np.clip(raw_A, -1.0, 1.0).astype(np.float32)

    return act
