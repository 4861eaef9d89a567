"""What the environments did since the last line of the log."""

from __future__ import annotations

from typing import Any

import numpy as np

from zoo.experience import finished_episodes
from zoo.metrics import PhaseClock, episode_metrics
from zoo.records import Episode


class News:
    """Counts decisions and keeps the episodes that ended, until they are read."""

    def __init__(self) -> None:
        self._forget()

    def add(self, executed: np.ndarray, infos: list[dict[str, Any]], dones: np.ndarray) -> None:
        """Take in one decision of every slot: steps run of each, its info, and whether its episode ended."""
        self._sim_steps += int(executed.sum())
        self._decisions += int((executed > 0).sum())
        self._episodes += finished_episodes(infos, dones)
        self._lost += sum(bool(done and info.get("lost", False)) for done, info in zip(dones, infos))

    def read(self, clock: PhaseClock) -> dict[str, float]:
        """`env/*`, `rollout/success_once` and `time/*` since the last reading; starts anew."""
        values = episode_metrics(self._episodes)
        values["env/episodes_lost"] = float(self._lost)
        values |= clock.read(decisions=self._decisions, sim_steps=self._sim_steps)
        self._forget()
        return values

    def _forget(self) -> None:
        self._episodes: list[Episode] = []
        self._decisions = self._sim_steps = self._lost = 0
