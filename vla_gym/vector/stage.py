"""`Stage`: a part of a vector environment's slots that steps by itself, so that others can be thought about."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from vla_gym.vector.inputs import read_actions
from vla_gym.vector.runner import CommandRunner
from vla_gym.workers.pool import PendingCommands


@dataclass(frozen=True)
class Outcome:
    """What a stage's n slots came to; fields as `VLAVectorEnv.step` returns them, of these slots alone."""

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
    """Bool: solved at the last of them."""
    lost_n: np.ndarray
    """Bool: the episode ended with its simulator."""
    task_id_n: np.ndarray
    """Index into the benchmark's tasks, int64."""
    start_state_n: np.ndarray
    """Hash of the simulator state each episode began in, str objects."""
    step_reward_nK: np.ndarray
    """Reward of every simulator step, float32; zero where not executed."""
    infos: dict[str, Any]
    """The same, batched as `VLAVectorEnv.step` returns them, each key with its `_key` mask."""


class Stage:
    """Adjacent slots; finished ones are held until `send_reset`, as in mode DISABLED.

    `send_step` and `send_reset` come back at once where worker processes run the slots, `receive` waits. One thing
    at a time is under way in a stage, and stages are received in the order in which they were sent.
    """

    def __init__(
        self,
        runner: CommandRunner,
        slots: range,
        action_space: spaces.Box,
        guard: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.slots = slice(slots.start, slots.stop)
        """Which of the environment's N slots."""
        self._first = slots.start
        self._runner = runner
        self._action_space = action_space
        self._guard = guard
        self._ticket: PendingCommands | None = None

    @property
    def under_way(self) -> bool:
        """Was something sent and not received?"""
        return self._ticket is not None

    @property
    def running_n(self) -> np.ndarray:
        """Bool `[n]`: slots that a step would advance."""
        return self._runner.table.running[self.slots]

    def send_step(self, actions: np.ndarray) -> None:
        """Begin one decision of every running slot; float `[n, K, A]`, rows of other slots are ignored."""
        running_n = self.running_n
        where = self._runner.where
        action_nKA = read_actions(
            actions, running_n, self._action_space, lambda slot: where(slot + self._first)
        )
        chosen = np.flatnonzero(running_n)
        slots = (chosen + self._first).tolist()
        with self._guard():
            self._send(self._runner.send(self._runner.step_commands(slots, list(action_nKA[chosen]))))

    def send_reset(self, mask_n: np.ndarray) -> None:
        """Begin new episodes in the slots of `mask_n` (bool)."""
        slots = (np.flatnonzero(mask_n) + self._first).tolist()
        with self._guard():
            self._send(self._runner.send(self._runner.begin_commands(slots)))

    def receive(self) -> Outcome:
        """Wait for what was sent."""
        assert self._ticket is not None, "receive() without send_step() or send_reset()"
        ticket, self._ticket = self._ticket, None
        with self._guard():
            decision = self._runner.receive(ticket)
        table = self._runner.table
        return Outcome(
            obs=self._runner.observe(self.slots),
            reward_n=decision.reward_N[self.slots],
            terminated_n=table.terminated[self.slots].copy(),
            truncated_n=table.truncated[self.slots].copy(),
            executed_n=decision.executed_N[self.slots],
            success_n=decision.success_N[self.slots],
            lost_n=table.lost[self.slots].copy(),
            task_id_n=table.task_id[self.slots].copy(),
            start_state_n=table.start_state[self.slots].copy(),
            step_reward_nK=decision.step_reward_NK[self.slots],
            infos=self._runner.infos(decision, self.slots),
        )

    def _send(self, ticket: PendingCommands) -> None:
        assert self._ticket is None, "receive() what was sent first"
        self._ticket = ticket
