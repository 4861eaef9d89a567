"""What the parent process knows of every slot: its episode, how it stands, and the actions so far."""

from __future__ import annotations

import numpy as np

from vla_gym.specs import StartState, Task
from vla_gym.workers.sub_env import SlotReport

IDLE_INSTRUCTION = "idle"
"""Instruction of a slot that has no episode (its part of the grid is used up)."""


class SlotTable:
    """Per-slot arrays over N slots; a slot is running, finished (`terminated` or `truncated`), or idle."""

    def __init__(self, num_envs: int, tasks: tuple[Task, ...]) -> None:
        self._tasks = tasks
        self.task_id = np.full(num_envs, -1, dtype=np.int64)
        self.trial_id = np.full(num_envs, -1, dtype=np.int64)
        self.start_state = np.full(num_envs, None, dtype=object)
        self.terminated = np.zeros(num_envs, dtype=np.bool_)
        self.truncated = np.zeros(num_envs, dtype=np.bool_)
        self.lost = np.zeros(num_envs, dtype=np.bool_)
        self.idle = np.ones(num_envs, dtype=np.bool_)
        self.episodes = np.zeros(num_envs, dtype=np.int64)
        """Episodes each slot has taken from the schedule."""
        self.losses = np.zeros(num_envs, dtype=np.int64)
        """Episodes each slot has lost in a row."""
        self.log: list[list[np.ndarray]] = [[] for _ in range(num_envs)]
        """Executed actions `[executed, A]` of the present episode, one array per decision."""

    @property
    def finished(self) -> np.ndarray:
        """Bool `[N]`: the episode has ended and no new one has begun."""
        return self.terminated | self.truncated

    @property
    def running(self) -> np.ndarray:
        """Bool `[N]`: a step would advance the slot."""
        return ~(self.terminated | self.truncated | self.idle)

    def instructions(self) -> tuple[str, ...]:
        """What each slot's policy is told."""
        return tuple(
            IDLE_INSTRUCTION if task_id < 0 else self._tasks[task_id].instruction
            for task_id in self.task_id.tolist()
        )

    def start(self, slot: int) -> StartState:
        """Cell of the slot's present episode."""
        return StartState(task_id=int(self.task_id[slot]), trial_id=int(self.trial_id[slot]))

    def begin_schedule(self, mask_N: np.ndarray) -> None:
        """The slots of the mask take their episodes from the schedule's start; a lost cell is forgotten."""
        self.episodes[mask_N] = 0
        self.lost[mask_N] = False

    def align(self, group_size: int) -> None:
        """Adjacent slots of a group go on with one episode of the schedule, that of the member furthest on."""
        self.episodes[:] = self.episodes.reshape(-1, group_size).max(axis=1).repeat(group_size)

    def begin(self, slot: int, start: StartState, fingerprint: str) -> None:
        """A new episode has begun."""
        self.task_id[slot] = start.task_id
        self.trial_id[slot] = start.trial_id
        self.start_state[slot] = fingerprint
        self._clear(slot, idle=False)

    def retire(self, slot: int) -> None:
        """The slot has nothing left to do."""
        self.task_id[slot] = self.trial_id[slot] = -1
        self.start_state[slot] = None
        self._clear(slot, idle=True)

    def record(self, slot: int, report: SlotReport, action_TA: np.ndarray) -> None:
        """A decision has been run; `action_TA` holds the actions really executed."""
        self.terminated[slot] = report.terminated
        self.truncated[slot] = report.truncated
        self.lost[slot] = report.lost
        if report.lost:
            self.losses[slot] += 1
        elif report.terminated or report.truncated:
            self.losses[slot] = 0
        if len(action_TA):
            self.log[slot].append(action_TA)

    def actions(self, slot: int, action_dim: int) -> np.ndarray:
        """Float32 `[steps so far, A]` of the present episode."""
        return np.concatenate([np.zeros((0, action_dim), dtype=np.float32), *self.log[slot]])

    def _clear(self, slot: int, *, idle: bool) -> None:
        for flags_N in (self.terminated, self.truncated, self.lost):
            flags_N[slot] = False
        self.idle[slot] = idle
        self.log[slot] = []
