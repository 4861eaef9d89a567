"""`Stage`: a part of a vector environment that steps independently while the policy decides for another part."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from vla_gym.vector.inputs import read_actions
from vla_gym.vector.runner import CommandRunner
from vla_gym.workers.pool import Command, PendingCommands


@dataclass(frozen=True)
class Outcome:
    """Result of a stage's n environments; fields as `VLAVectorEnv.step` returns them."""

    obs: dict[str, Any]
    """Last observation, fresh arrays `[n, ...]`, `instruction` a tuple."""
    reward_n: np.ndarray
    """Sum over the chunk, float64; zero after a reset."""
    terminated_n: np.ndarray
    """Bool."""
    truncated_n: np.ndarray
    """Bool."""
    executed_n: np.ndarray
    """Simulator steps run, int64; zero after a reset."""
    success_n: np.ndarray
    """Bool: solved at any of them."""
    lost_n: np.ndarray
    """Bool: the worker failed with the episode."""
    task_id_n: np.ndarray
    """Index into the benchmark's tasks, int64."""
    start_state_n: np.ndarray
    """Hash of the simulator state in which each episode began, str objects."""
    step_reward_nK: np.ndarray
    """Reward of every simulator step, float32; zero where not executed."""
    infos: dict[str, Any]
    """The same, batched as `VLAVectorEnv.step` returns them, each key with its `_key` mask."""


class Stage:
    """Adjacent environments; finished ones are held until `send_reset`, as in mode DISABLED.

    `send_step` and `send_reset` return at once where worker processes simulate, `receive` waits. A stage has one
    pending request at a time, and stages are received in the order in which they were sent.
    """

    def __init__(
        self,
        runner: CommandRunner,
        envs: range,
        action_space: spaces.Box,
        guard: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.part = slice(envs.start, envs.stop)
        """Its environments among the N."""
        self._runner = runner
        self._action_space = action_space
        self._guard = guard
        self._pending: PendingCommands | None = None

    @property
    def pending(self) -> bool:
        """Whether something was sent and not received."""
        return self._pending is not None

    @property
    def running_n(self) -> np.ndarray:
        """Bool `[n]`: a step would advance the episode."""
        return self._runner.table.running[self.part]

    def send_step(self, actions: np.ndarray) -> None:
        """Begin one decision of every running episode; float `[n, K, A]`, other rows are ignored."""
        running_n = self.running_n
        first, where = self.part.start, self._runner.where
        action_nKA = read_actions(actions, running_n, self._action_space, lambda row: where(row + first))
        rows = np.flatnonzero(running_n)
        commands = self._runner.step_commands((rows + first).tolist(), list(action_nKA[rows]))
        self._send(commands)

    def send_reset(self, mask_n: np.ndarray) -> None:
        """Begin new episodes where `mask_n` (bool) is True."""
        self._send(self._runner.begin_commands((np.flatnonzero(mask_n) + self.part.start).tolist()))

    def receive(self) -> Outcome:
        """Wait for the pending request."""
        assert self._pending is not None, "receive() without send_step() or send_reset()"
        pending, self._pending = self._pending, None
        part, table = self.part, self._runner.table
        with self._guard():
            decision = self._runner.receive(pending)
            obs = self._runner.observe(part)
        return Outcome(
            obs=obs,
            reward_n=decision.reward_N[part],
            terminated_n=table.terminated[part].copy(),
            truncated_n=table.truncated[part].copy(),
            executed_n=decision.executed_N[part],
            success_n=decision.success_N[part],
            lost_n=table.lost[part].copy(),
            task_id_n=table.task_id[part].copy(),
            start_state_n=table.start_state[part].copy(),
            step_reward_nK=decision.step_reward_NK[part],
            infos=self._runner.infos(decision, part),
        )

    def _send(self, commands: list[Command]) -> None:
        with self._guard():
            assert self._pending is None, "receive() what was sent first"
            self._pending = self._runner.send(commands)
