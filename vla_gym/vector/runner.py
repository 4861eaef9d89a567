"""`CommandRunner`: commands go to the pool, reports come back into the table; the inside of a vector environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vla_gym.errors import WorkerFailed
from vla_gym.specs import Benchmark, StartState
from vla_gym.vector.infos import Decision, episode_info, masked
from vla_gym.vector.start_states import Schedule
from vla_gym.vector.state import EpisodeTable
from vla_gym.workers.pool import Command, PendingCommands, Pool, describe_episode

MAX_LOSSES = 3
"""Episodes that one sub-environment may lose in a row; so many are no accident."""
_LARGEST_REWARD = 1e15
"""Its square, and a million such, are far inside float32's range, which ends at 3.4e38."""
ALL = slice(None)
"""Every sub-environment."""


class CommandRunner:
    """N sub-environments: the `pool` that runs them, their episodes (`table`) and the next ones (`schedule`)."""

    def __init__(self, benchmark: Benchmark, num_envs: int, chunk: int, schedule: Schedule, pool: Pool) -> None:
        self.schedule = schedule
        self.table = EpisodeTable(num_envs, benchmark.tasks)
        self.pool = pool
        self.num_pending = 0
        """Batches of commands sent and not yet received."""
        self._benchmark = benchmark
        self._shape = (num_envs, chunk)

    def begin_commands(self, envs: Sequence[int], starts: Mapping[int, StartState] | None = None) -> list[Command]:
        """Resets to `starts`, else to the schedule's; those without an episode left are retired at once."""
        commands = []
        for env in envs:
            start = starts[env] if starts else self._next_start(env)
            if start is None:
                self.table.retire(env)
            else:
                commands.append(Command(slot=env, start=start, kind="reset"))
        return commands

    def step_commands(self, envs: Sequence[int], actions: Sequence[np.ndarray]) -> list[Command]:
        """One decision of each of `envs`, with its actions `[K, A]`."""
        return [
            Command(slot=env, start=self.table.start(env), kind="step", action_TA=action_KA)
            for env, action_KA in zip(envs, actions, strict=True)
        ]

    def run(self, commands: Sequence[Command]) -> Decision:
        """Run commands and enter their reports in the table."""
        return self.receive(self.send(commands))

    def send(self, commands: Sequence[Command]) -> PendingCommands:
        """Start commands; see `Pool.send`."""
        pending = self.pool.send(commands)
        self.num_pending += 1
        return pending

    def receive(self, pending: PendingCommands) -> Decision:
        """Wait for the oldest pending commands and enter their reports in the table."""
        reports = self.pool.receive(pending)
        self.num_pending -= 1
        decision = self.no_decision()
        for command, report in zip(pending.commands, reports, strict=True):
            if command.kind == "reset":
                self.table.begin(command.slot, command.start, report.fingerprint)
            else:
                assert command.action_TA is not None
                executed = len(report.step_rewards)
                self._check_rewards(command.slot, report.step_rewards)
                self.table.record(command.slot, report, command.action_TA[:executed].copy())
                decision.enter(command.slot, report)
        self._check_losses()
        return decision

    def no_decision(self) -> Decision:
        """The decision of a reset: nothing was run."""
        return Decision(*self._shape)

    def where(self, env: int) -> str:
        """Env, slot, task and trial of a present episode, for errors."""
        return describe_episode(self._benchmark.id, self._benchmark.tasks, env, self.table.start(env))

    def observe(self, part: slice = ALL) -> dict[str, Any]:
        """Fresh arrays of the last observation of a part, and its instructions."""
        arrays = {key: value[part].copy() for key, value in self.pool.memory.observation.items()}
        for key, value_n in arrays.items():
            if value_n.dtype.kind == "f" and not np.isfinite(value_n).all():
                self._check_observation(key, value_n, part)
        return {**arrays, "instruction": self.table.instructions()[part]}

    def infos(self, decision: Decision, part: slice = ALL, mask_n: np.ndarray | None = None) -> dict[str, Any]:
        """Batched infos of a part; with `mask_n`, only of those in it."""
        table = self.table
        fields = {
            "success": decision.success_N,
            "task_id": table.task_id,
            "trial_id": table.trial_id,
            "executed": decision.executed_N,
            "start_state": table.start_state,
            "step_rewards": decision.step_reward_NK,
            "idle": table.idle,
            "lost": table.lost,
        }
        chosen = {key: value[part] for key, value in fields.items()}
        if mask_n is None:
            mask_n = np.ones(len(chosen["idle"]), dtype=np.bool_)
        return masked(chosen, mask_n) | episode_info(decision.episodes[part])

    def _check_rewards(self, env: int, rewards: Sequence[float]) -> None:
        """Raise `WorkerFailed` for a reward that no float32 holds: every sum it enters would be as useless."""
        for step, reward in enumerate(rewards):
            if not abs(reward) < _LARGEST_REWARD:
                raise WorkerFailed(
                    f"the simulator's reward is {reward} in step {step} of a decision [{self.where(env)}]; every "
                    f"reward must be finite, below {_LARGEST_REWARD:g}"
                )

    def _check_observation(self, key: str, value_n: np.ndarray, part: slice) -> None:
        """Raise `WorkerFailed` where an environment that runs observes what is not finite."""
        for env, value in zip(range(len(self.table.idle))[part], value_n, strict=True):
            if not (self.table.idle[env] or self.table.lost[env] or np.isfinite(value).all()):
                index = np.argwhere(~np.isfinite(value))[0].tolist()
                raise WorkerFailed(
                    f"the simulator's observation '{key}'{index} is {value[tuple(index)]} [{self.where(env)}]; every "
                    "number must be finite"
                )

    def _next_start(self, env: int) -> StartState | None:
        if self.schedule.kind == "grid" and self.table.lost[env]:
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
