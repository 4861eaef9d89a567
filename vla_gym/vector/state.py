"""State of a vector environment: the table of its episodes, and the same as JSON values.

Saved is only the start state of each sub-environment's episode and the actions executed since; loading replays them
without rendering. So saving needs no simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vla_gym.errors import BadValue, shown
from vla_gym.specs import Benchmark, StartState, Task
from vla_gym.vector.start_states import Schedule, checked_start
from vla_gym.workers.messages import actions_from_text, actions_to_text
from vla_gym.workers.sub_env import Command, Report

VERSION = 1
IDLE_INSTRUCTION = "idle"
"""Instruction of a sub-environment without an episode (its part of the grid is used up)."""


class EpisodeTable:
    """The present episode of each of N sub-environments: running, finished (`terminated` or `truncated`) or idle."""

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
        """Number of episodes taken from the schedule."""
        self.losses = np.zeros(num_envs, dtype=np.int64)
        """Number of episodes lost in a row."""
        self.log: list[list[np.ndarray]] = [[] for _ in range(num_envs)]
        """Executed actions `[executed, A]` of the present episode, one array per decision."""

    @property
    def finished(self) -> np.ndarray:
        """Bool `[N]`: the episode has ended and no new one has begun."""
        return self.terminated | self.truncated

    @property
    def running(self) -> np.ndarray:
        """Bool `[N]`: a step would advance the episode."""
        return ~(self.terminated | self.truncated | self.idle)

    def instructions(self) -> tuple[str, ...]:
        """Instruction of each episode."""
        return tuple(
            IDLE_INSTRUCTION if task_id < 0 else self._tasks[task_id].instruction for task_id in self.task_id.tolist()
        )

    def start(self, env: int) -> StartState:
        """Start state of the present episode."""
        return StartState(task_id=int(self.task_id[env]), trial_id=int(self.trial_id[env]))

    def begin_schedule(self, mask_N: np.ndarray) -> None:
        """Take the next episodes of the masked ones from the schedule's start; forget lost start states."""
        self.episodes[mask_N] = 0
        self.lost[mask_N] = False

    def align(self, group_size: int) -> None:
        """Let all members of a group go on with one episode of the schedule, that of the member furthest on."""
        self.episodes[:] = self.episodes.reshape(-1, group_size).max(axis=1).repeat(group_size)

    def begin(self, env: int, start: StartState, start_state: str) -> None:
        """Record that a new episode has begun."""
        self.task_id[env] = start.task_id
        self.trial_id[env] = start.trial_id
        self.start_state[env] = start_state
        self._clear(env, idle=False)

    def retire(self, env: int) -> None:
        """Record that the schedule has no episode left."""
        self.task_id[env] = self.trial_id[env] = -1
        self.start_state[env] = None
        self._clear(env, idle=True)

    def record(self, env: int, report: Report, action_TA: np.ndarray) -> None:
        """Record a decision; `action_TA` holds the actions really executed."""
        self.terminated[env] = report.terminated
        self.truncated[env] = report.truncated
        self.lost[env] = report.lost
        if report.lost:
            self.losses[env] += 1
        elif report.terminated or report.truncated:
            self.losses[env] = 0
        if len(action_TA):
            self.log[env].append(action_TA)

    def actions(self, env: int, action_dim: int) -> np.ndarray:
        """Float32 `[steps so far, A]` of the present episode."""
        return np.concatenate([np.zeros((0, action_dim), dtype=np.float32), *self.log[env]])

    def _clear(self, env: int, *, idle: bool) -> None:
        for flags_N in (self.terminated, self.truncated, self.lost):
            flags_N[env] = False
        self.idle[env] = idle
        self.log[env] = []


def save(table: EpisodeTable, schedule: Schedule, benchmark: Benchmark) -> dict[str, Any]:
    """Return the state as JSON values."""
    entries: list[dict[str, Any] | None] = [
        None
        if table.idle[env]
        else {
            "task_id": int(table.task_id[env]),
            "trial_id": int(table.trial_id[env]),
            "start_state": str(table.start_state[env]),
            "lost": bool(table.lost[env]),
            "actions": actions_to_text(table.actions(env, benchmark.action_dim)),
        }
        for env in range(len(table.idle))
    ]
    return {
        "version": VERSION,
        "env_id": benchmark.id,
        "schedule": schedule.kind,
        "group_size": schedule.group_size,
        "seed": schedule.seed,
        "episodes": table.episodes.tolist(),
        "slots": entries,
    }


def replay_commands(
    state: Mapping[str, Any], table: EpisodeTable, schedule: Schedule, benchmark: Benchmark
) -> list[Command]:
    """Check that a saved state belongs to this environment, which is left alone, and return the replays to it."""
    for key, value in (
        ("version", VERSION),
        ("env_id", benchmark.id),
        ("schedule", schedule.kind),
        ("group_size", schedule.group_size),
    ):
        saved = state.get(key, value if key == "group_size" else None)  # older states do not name theirs
        if saved != value:
            raise BadValue(f"saved environment state has {key}={shown(saved)}, this one has {shown(value)}")
    if len(state["slots"]) != len(table.idle):
        raise BadValue(f"saved environment state has {len(state['slots'])} slots, this one {len(table.idle)}")
    return [
        Command(
            slot=env,
            start=checked_start(entry["task_id"], entry["trial_id"], benchmark.tasks, what=f" of slot {env}"),
            kind="replay",
            action_TA=actions_from_text(entry["actions"], benchmark.action_dim),
        )
        for env, entry in enumerate(state["slots"])
        if entry is not None
    ]


def restore(
    state: Mapping[str, Any], table: EpisodeTable, commands: Sequence[Command], reports: Sequence[Report]
) -> None:
    """Enter the replays' reports in the table; raise `BadValue` when a replay began in another state."""
    table.episodes[:] = state["episodes"]
    for env, entry in enumerate(state["slots"]):
        if entry is None:
            table.retire(env)
    for command, report in zip(commands, reports, strict=True):
        entry = state["slots"][command.slot]
        if report.start_state != entry["start_state"]:
            raise BadValue(
                f"slot {command.slot} (task {command.start.task_id}, trial {command.start.trial_id}) began "
                f"in state {report.start_state}, saved was {entry['start_state']}: the simulator, its "
                "version or its assets differ from those of the saved run"
            )
        table.begin(command.slot, command.start, report.start_state)
        assert command.action_TA is not None
        table.record(command.slot, report, command.action_TA)
        if entry["lost"]:
            table.lost[command.slot] = table.truncated[command.slot] = True
