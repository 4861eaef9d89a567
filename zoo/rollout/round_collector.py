"""Collecting in rounds: one episode in every sub-environment, none of which begins another before all have ended."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from typing import Any

import torch

from vla_gym.vector.vector_env import VLAVectorEnv
from zoo.rollout.collector import RolloutCollector
from zoo.rollout.env_loop import env_loop
from zoo.rollout.env_views import vla_envs
from zoo.rollout.types import OnStep, RolloutStart, Step


def decisions_of_an_episode(envs: VLAVectorEnv) -> int:
    """T, decisions that an episode of any task takes at most."""
    longest = max(task.horizon for task in envs.benchmark.tasks)
    return math.ceil(longest / envs.config.chunk)


class RoundCollector(RolloutCollector):
    """Rounds of one episode in every sub-environment; round r of sub-environment n fills column r * N + n.

    What follows an episode's end in its column is not executed, and costs nothing.
    """

    def __init__(self, *args: Any, num_rounds: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        envs = vla_envs(self.env)
        assert envs is not None, "rounds are of environments of vla_gym"
        self._envs = envs
        self._num_rounds = num_rounds
        self._at_episode_start = False

    def results(self) -> dict[str, Any]:
        # Every episode has ended: nothing follows the last row.
        return {"last_value_N": torch.zeros(self.buffer.columns)}

    def _fill(self, start: RolloutStart, on_step: OnStep) -> bool:
        self._begin_at(start)
        for number in range(self._num_rounds):
            first_column = number * self.env.num_envs

            def write(row: int, step: Step, first_column: int = first_column) -> None:
                self._write(row, first_column + step.env_n, step)

            if not self._play(start.number, number, on_step, write):
                return False
        return True

    def _begin_at(self, start: RolloutStart) -> None:
        """Take the observation that a rollout begins with."""
        self.obs, self._at_episode_start = start.obs, start.at_episode_start

    def _play(self, rollout: int, number: int, on_step: OnStep, write: Callable[[int, Step], None]) -> bool:
        """Play round `number`, each row of which goes to `write`; False when a rank stopped it."""
        if not self._at_episode_start:
            with self._clock.phase("env"):
                obs = self.env.reset()
            assert isinstance(obs, dict)
            self.obs = obs
        self._at_episode_start = False
        num_decisions = self._config.num_decisions
        loop = env_loop(self.env.unwrapped, self.obs, self._act(rollout), self._clock)
        before = number * num_decisions
        try:
            with closing(loop.steps(num_decisions, first_decision=before, renew=False)) as steps:
                for row, step in enumerate(steps):
                    if not self._count(before + row, step, on_step):
                        return False
                    write(row, step)
        finally:
            self.obs = loop.obs
        assert self._envs.finished.all(), "an episode outlived its task's horizon"
        return True
