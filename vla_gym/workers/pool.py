"""`Pool`: whoever runs the sub-environments. `LocalPool` runs them in this process, one after the other.

Every pool takes the same commands, drives the same `SubEnv` objects and leaves observations in the same memory.
"""

from __future__ import annotations

import contextlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from vla_gym.errors import VLAZooError, WorkerFailed, WorkerRestarted
from vla_gym.specs import StartState, Task
from vla_gym.workers.messages import LOST, Command, MemoryLayout, PendingCommands, Report, SlotMemory, SubEnvSetup
from vla_gym.workers.worker import build_sub_env

OnWorkerError = Literal["raise", "restart"]


class Pool(ABC):
    """Runs commands on sub-environments."""

    memory: SlotMemory
    """Holds the observations after `run`."""
    last_failure: str = ""
    """Reason of the latest restart; empty when there was none."""

    def run(self, commands: Sequence[Command]) -> list[Report]:
        """Run at most one command per slot, all concurrently; reports in the order of the commands.

        Raises `WorkerFailed`, after which the pool is closed.
        """
        return self.receive(self.send(commands))

    @abstractmethod
    def send(self, commands: Sequence[Command]) -> PendingCommands:
        """Start the commands and return at once if other processes run them; else run them now.

        Several batches may be pending if no two name one slot; they are received in the order they were sent.
        """

    def receive(self, pending: PendingCommands) -> list[Report]:
        """Wait for the oldest pending commands; the observations of their slots are then in `memory`."""
        return pending.ordered_reports()

    def pids(self) -> list[int]:
        """Process ids of the workers, none for a local pool."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Free every simulator and end every worker; may be called again."""


class AbsentPool(Pool):
    """Stands in for sub-environments that other processes own: resets and replays succeed at once, steps are refused.

    Its observations stay zero.
    """

    def __init__(self, layout: MemoryLayout) -> None:
        self.memory = SlotMemory(layout)

    def send(self, commands: Sequence[Command]) -> PendingCommands:
        assert all(command.kind != "step" for command in commands), "these slots are stepped elsewhere"
        return PendingCommands(commands, {command.slot: Report() for command in commands})

    def close(self) -> None:
        """Nothing is held."""


class LocalPool(Pool):
    """Every sub-environment in this process, one after the other: right when a step costs microseconds."""

    def __init__(self, setup: SubEnvSetup, *, on_worker_error: OnWorkerError = "raise") -> None:
        self._setup = setup
        self._on_worker_error = on_worker_error
        self.memory = SlotMemory(setup.memory)
        self._envs = [build_sub_env(setup) for _ in range(setup.memory.num_slots)]

    def send(self, commands: Sequence[Command]) -> PendingCommands:
        try:
            return PendingCommands(commands, {command.slot: self._run(command) for command in commands})
        except Exception:
            envs, self._envs = self._envs, []
            for env in envs:
                with contextlib.suppress(Exception):  # the first failure is the one to report
                    env.close()
            raise

    def close(self) -> None:
        envs, self._envs = self._envs, []
        for env in envs:
            env.close()

    def _run(self, command: Command, *, anew: bool = False) -> Report:
        """Run a command; `anew` in a sub-environment that is built again, where a step is lost."""
        slot = command.slot
        try:
            if anew:
                with contextlib.suppress(Exception):  # a simulator that failed need not close cleanly
                    self._envs[slot].close()
                self._envs[slot] = build_sub_env(self._setup)
                if command.kind == "step":
                    return LOST
            report = self._envs[slot].run(command)
            self.memory.write(slot, self._envs[slot].observe())
            return report
        except VLAZooError:
            raise
        except Exception as error:
            where = describe_commands(self._setup, [command]) + ", started anew" * anew
            failure = f"{where}: {type(error).__name__}: {error}"
            if anew or self._on_worker_error == "raise":
                raise WorkerFailed(failure) from error
        self.last_failure = failure
        warn_of_restart(failure)
        return self._run(command, anew=True)


def describe_commands(setup: SubEnvSetup, commands: Sequence[Command]) -> str:
    """Env, slot, task, trial and kind of the first three commands, and the number of the others."""
    more = f" and {len(commands) - 3} more" if len(commands) > 3 else ""
    return (
        "; ".join(
            f"{describe_episode(setup.env_id, setup.tasks, command.slot, command.start)}, during {command.kind}"
            for command in commands[:3]
        )
        + more
    )


def describe_episode(env_id: str, tasks: tuple[Task, ...], slot: int, start: StartState) -> str:
    """Env, slot, task and trial of an episode."""
    return f"{env_id}, slot {slot}, task {start.task_id} ({tasks[start.task_id].name}), trial {start.trial_id}"


def warn_of_restart(reason: str) -> None:
    """Issue the `WorkerRestarted` warning."""
    warnings.warn(
        f"{reason}. It is started anew; episodes that were running in it are lost and counted as such",
        WorkerRestarted,
        stacklevel=2,
    )
