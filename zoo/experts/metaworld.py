"""Meta-World's own scripted policies, through our actions."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from vla_gym.adapters.metaworld_tasks import expert_name
from vla_gym.specs import Task


class MetaWorldExpert:
    """The class of `metaworld.policies` for a task; see `zoo.experts.base.Expert`."""

    def __init__(self, task: Task) -> None:
        # Loads MuJoCo and every task's class, which takes seconds.
        from metaworld import policies

        self._scripted: Any = getattr(policies, expert_name(task.name))()

    def action(self, privileged_P: np.ndarray) -> np.ndarray:
        """Proportional control towards the next waypoint, cut to the range of an action: float32 `[4]`."""
        with warnings.catch_warnings():
            # Some of them say at every step that their gain is too high for the range of an action.
            warnings.simplefilter("ignore", UserWarning)
            raw_A = self._scripted.get_action(privileged_P)
        return np.clip(raw_A, -1.0, 1.0).astype(np.float32)
