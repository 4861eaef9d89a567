"""`CommandRunner` sends commands to the pool and makes an `EnvStep` of the reports; a `Stage` does so for a part.

A saved state holds only the start state of each sub-environment's episode and the actions executed since; loading
replays them without rendering. So saving needs no simulator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from gymnasium import spaces

from vla_gym.errors import BadValue, WorkerFailed, shown
from vla_gym.specs import Benchmark, StartState
from vla_gym.vector.start_states import Schedule, checked_start
from vla_gym.vector.step import EnvStep, EpisodeTable, Observation
from vla_gym.workers.messages import Command, PendingCommands, actions_from_text, actions_to_text
from vla_gym.workers.pool import Pool, describe_episode

STATE_VERSION = 1
MAX_LOSSES = 3
"""Episodes in a row that one sub-environment may lose."""
_LARGEST_REWARD = 1e15
"""A million squares of it are far inside float32's range, which ends at 3.4e38."""
ALL = slice(None)
"""Every sub-environment."""


class CommandRunner:
    """N sub-environments: the `pool` that runs them, their episodes (`table`) and the next ones (`schedule`)."""

    def __init__(self, benchmark: Benchmark, num_envs: int, chunk: int, schedule: Schedule, pool: Pool) -> None:
        self.schedule = schedule
        self.table = EpisodeTable(num_envs, chunk, benchmark.tasks)
        self.pool = pool
        self.num_pending = 0
        """Batches of commands sent and not yet received."""
        self._benchmark = benchmark

    def begin_commands(self, envs: Sequence[int], starts: Mapping[int, StartState] | None = None) -> list[Command]:
        """Return resets to `starts`, else to the schedule's; environments without an episode left are retired."""
        commands = []
        for env in envs:
            start = starts[env] if starts else self._next_start(env)
            if start is None:
                self.table.begin(env, None)
            else:
                commands.append(Command(slot=env, start=start, kind="reset"))
        return commands

    def step_commands(self, envs: Sequence[int], actions: Sequence[np.ndarray]) -> list[Command]:
        """Return one decision of each of `envs`, with its actions `[K, A]`."""
        return [
            Command(slot=env, start=self.table.start(env), kind="step", action_TA=action_KA)
            for env, action_KA in zip(envs, actions, strict=True)
        ]

    def run(self, commands: Sequence[Command]) -> EnvStep:
        """Run commands; return the step of every environment."""
        return self.receive(self.send(commands))

    def send(self, commands: Sequence[Command]) -> PendingCommands:
        """Start commands; see `Pool.send`."""
        pending = self.pool.send(commands)
        self.num_pending += 1
        return pending

    def receive(self, pending: PendingCommands, part: slice = ALL) -> EnvStep:
        """Wait for the oldest pending commands, enter their reports in the table and return the step of `part`."""
        reports = self.pool.receive(pending)
        self.num_pending -= 1
        for command, report in zip(pending.commands, reports, strict=True):
            if command.kind == "reset":
                self.table.begin(command.slot, command.start, report.start_state)
            else:
                assert command.action_TA is not None
                self._check_rewards(command.slot, report.step_rewards)
                self.table.record(command.slot, report, command.action_TA[: len(report.step_rewards)].copy())
        self._check_losses()
        step = self.present(part)
        for command, report in zip(pending.commands, reports, strict=True):
            if command.kind == "step":
                row, executed = command.slot - (part.start or 0), len(report.step_rewards)
                step.reward_n[row] = sum(report.step_rewards)
                step.executed_n[row] = executed
                step.success_n[row] = report.success
                step.step_reward_nK[row, :executed] = report.step_rewards
                step.episodes[row] = report.episode
        return step

    def present(self, part: slice = ALL) -> EnvStep:
        """Return the present state of a part as a step in which nothing was run."""
        env_n = np.arange(len(self.table.log))[part]
        return dataclasses.replace(self.table.now.copied(env_n), obs=self._observe(part))

    def state(self) -> dict[str, Any]:
        """Return the episodes and the schedule's position as JSON values."""
        now = self.table.now
        nothing_A = np.zeros((0, self._benchmark.action_dim), dtype=np.float32)
        entries: list[dict[str, Any] | None] = [
            None
            if now.idle_n[env]
            else {
                "task_id": int(now.task_id_n[env]),
                "trial_id": int(now.trial_id_n[env]),
                "start_state": str(now.start_state_n[env]),
                "lost": bool(now.lost_n[env]),
                "actions": actions_to_text(np.concatenate([nothing_A, *log])),
            }
            for env, log in enumerate(self.table.log)
        ]
        return {**self._kind(), "seed": self.schedule.seed, "episodes": self.table.episodes.tolist(), "slots": entries}

    def replay_commands(self, state: Mapping[str, Any]) -> list[Command]:
        """Check that a saved state is of such sub-environments, which are left alone, and return the replays to it."""
        for key, value in self._kind().items():
            saved = state.get(key, value if key == "group_size" else None)  # older states do not name theirs
            if saved != value:
                raise BadValue(f"saved environment state has {key}={shown(saved)}, this one has {shown(value)}")
        if len(state["slots"]) != len(self.table.log):
            raise BadValue(f"saved environment state has {len(state['slots'])} slots, this one {len(self.table.log)}")
        tasks, action_dim = self._benchmark.tasks, self._benchmark.action_dim
        return [
            Command(
                slot=env,
                start=checked_start(entry["task_id"], entry["trial_id"], tasks, what=f" of slot {env}"),
                kind="replay",
                action_TA=actions_from_text(entry["actions"], action_dim),
            )
            for env, entry in enumerate(state["slots"])
            if entry is not None
        ]

    def restore(self, state: Mapping[str, Any], commands: Sequence[Command]) -> EnvStep:
        """Run the replays to a saved state; raise `BadValue` when one began in another state."""
        reports = self.pool.run(commands)
        self.table.episodes[:] = state["episodes"]
        for env, entry in enumerate(state["slots"]):
            if entry is None:
                self.table.begin(env, None)
        for command, report in zip(commands, reports, strict=True):
            entry = state["slots"][command.slot]
            if report.start_state != entry["start_state"]:
                raise BadValue(
                    f"slot {command.slot} (task {command.start.task_id}, trial {command.start.trial_id}) began "
                    f"in state {report.start_state}, saved was {entry['start_state']}: the simulator, its "
                    "version or its assets differ from those of the saved run"
                )
            self.table.begin(command.slot, command.start, report.start_state)
            assert command.action_TA is not None
            self.table.record(command.slot, report, command.action_TA)
            if entry["lost"]:
                self.table.now.lost_n[command.slot] = self.table.now.truncated_n[command.slot] = True
        return self.present()

    def where(self, env: int) -> str:
        """Return env, slot, task and trial of a present episode, for errors."""
        return describe_episode(self._benchmark.id, self._benchmark.tasks, env, self.table.start(env))

    def _kind(self) -> dict[str, Any]:
        """Entries of a state that say what it is of."""
        return {
            "version": STATE_VERSION,
            "env_id": self._benchmark.id,
            "schedule": self.schedule.kind,
            "group_size": self.schedule.group_size,
        }

    def _observe(self, part: slice) -> Observation:
        arrays = {key: value[part].copy() for key, value in self.pool.memory.observation.items()}
        for key, value_n in arrays.items():
            if value_n.dtype.kind == "f" and not np.isfinite(value_n).all():
                self._check_observation(key, value_n, part)
        return {**arrays, "instruction": self.table.instructions()[part]}

    def _check_rewards(self, env: int, rewards: Sequence[float]) -> None:
        for step, reward in enumerate(rewards):
            if not abs(reward) < _LARGEST_REWARD:
                raise WorkerFailed(
                    f"the simulator's reward is {reward} in step {step} of a decision [{self.where(env)}]; every "
                    f"reward must be finite, below {_LARGEST_REWARD:g}"
                )

    def _check_observation(self, key: str, value_n: np.ndarray, part: slice) -> None:
        now = self.table.now
        for env, value in zip(range(len(now.idle_n))[part], value_n, strict=True):
            if not (now.idle_n[env] or now.lost_n[env] or np.isfinite(value).all()):
                index = np.argwhere(~np.isfinite(value))[0].tolist()
                raise WorkerFailed(
                    f"the simulator's observation '{key}'{index} is {value[tuple(index)]} [{self.where(env)}]; every "
                    "number must be finite"
                )

    def _next_start(self, env: int) -> StartState | None:
        if self.schedule.kind == "grid" and self.table.now.lost_n[env]:
            return self.table.start(env)  # a grid leaves no start state out
        start = self.schedule.start_state(env, int(self.table.episodes[env]))
        if start is not None:
            self.table.episodes[env] += 1
        return start

    def _check_losses(self) -> None:
        env = int(self.table.losses.argmax())
        if self.table.losses[env] >= MAX_LOSSES:
            raise WorkerFailed(
                f"{MAX_LOSSES} episodes in a row were lost [{self.where(env)}]. "
                f"The last failure: {self.pool.last_failure}"
            )


class Stage:
    """Adjacent environments that step while the policy decides for others; finished ones wait for `send_reset`.

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
        self._send(self._runner.step_commands((rows + first).tolist(), list(action_nKA[rows])))

    def send_reset(self, mask_n: np.ndarray) -> None:
        """Begin new episodes where `mask_n` (bool) is True."""
        self._send(self._runner.begin_commands((np.flatnonzero(mask_n) + self.part.start).tolist()))

    def receive(self) -> EnvStep:
        """Wait for the pending request and return its result."""
        assert self._pending is not None, "receive() without send_step() or send_reset()"
        pending, self._pending = self._pending, None
        with self._guard():
            return self._runner.receive(pending, self.part)

    def _send(self, commands: list[Command]) -> None:
        with self._guard():
            assert self._pending is None, "receive() what was sent first"
            self._pending = self._runner.send(commands)


def read_actions(
    actions: object, running_N: np.ndarray, single: spaces.Box, where: Callable[[int], str] = "slot {}".format
) -> np.ndarray:
    """Return actions as a fresh float32 `[N, K, A]` clipped to [-1, 1].

    With K = 1, `[N, A]` is accepted too. Rows of environments that do not run are ignored. Raises `BadValue` for
    another shape, for what is no number, and for NaN or infinity in the row of a running environment, which
    `where` describes.
    """
    wanted = len(running_N), *single.shape
    try:
        raw = np.asarray(actions, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise BadValue(f"actions must be an array of numbers, got {type(actions).__name__}: {error}") from error
    if wanted[1] == 1 and raw.shape == (wanted[0], wanted[2]):
        raw = raw[:, None]
    if raw.shape != wanted:
        also = f" or {[wanted[0], wanted[2]]}" if wanted[1] == 1 else ""
        raise BadValue(
            f"actions have shape {list(raw.shape)}, expected [num_envs, chunk, action_dim] = {list(wanted)}{also}"
        )
    bad = ~np.isfinite(raw)
    if bad.any():
        if (bad & running_N[:, None, None]).any():
            env, step, dim = np.argwhere(bad & running_N[:, None, None])[0].tolist()
            raise BadValue(
                f"actions[{env}, {step}, {dim}] is {raw[env, step, dim]} [{where(env)}]; every action must be "
                "finite, in [-1, 1]"
            )
        raw = np.nan_to_num(raw)
    return np.clip(raw, -1.0, 1.0)
