"""Who runs the slots. `LocalPool` runs them here, in turn; `vla_gym.workers.process_pool` in worker processes.

Both take the same commands, drive the same `Slot` objects and leave observations in the same memory.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from vla_gym.errors import VLAZooError, WorkerFailed, WorkerRestarted
from vla_gym.rewards import RewardRule
from vla_gym.simulator import Simulator
from vla_gym.specs import StartState, Task
from vla_gym.workers.shared_memory import MemoryLayout, SlotMemory
from vla_gym.workers.sub_env import Slot, SlotReport

OnWorkerError = Literal["raise", "restart"]


@dataclass(frozen=True, kw_only=True)
class SlotSetup:
    """What every slot of a pool is made of."""

    env_id: str
    simulator: str
    """Entry point "module:Class"."""
    simulator_kwargs: Mapping[str, Any]
    tasks: tuple[Task, ...]
    rule: RewardRule
    memory: MemoryLayout

    def build(self) -> Slot:
        """Import the simulator and construct one slot."""
        module, _, name = self.simulator.partition(":")
        factory = getattr(importlib.import_module(module), name)
        layout = self.memory.observation
        simulator: Simulator = factory(self.tasks, layout.image_size, layout.cameras, **self.simulator_kwargs)
        return Slot(simulator, self.tasks, self.rule)


@dataclass(frozen=True, kw_only=True)
class SlotCommand:
    """One thing to do with one slot; the observation after it is rendered once."""

    slot: int
    start: StartState
    """Cell of the episode: the new one for `reset` and `replay`, the present one for `step`."""
    kind: Literal["reset", "step", "replay"]
    action_TA: np.ndarray | None = field(default=None, compare=False)
    """Float32 `[K, A]` of a step, or the `[T, A]` log of a replay."""


@dataclass(eq=False)
class Ticket:
    """Commands that were sent: `Pool.receive` takes it once and gives their reports."""

    commands: Sequence[SlotCommand]
    """In the order of their reports."""
    reports: dict[int, SlotReport] = field(default_factory=dict)
    """Slot -> report, as far as they are known."""
    jobs: dict[int, list[SlotCommand]] = field(default_factory=dict)
    """Worker -> the commands that it has not answered yet."""

    def answers(self) -> list[SlotReport]:
        """Every report, in order, once all are known."""
        return [self.reports[command.slot] for command in self.commands]


class Pool(ABC):
    """Runs commands on slots."""

    memory: SlotMemory
    """Where the observations are after `run`."""

    def run(self, commands: Sequence[SlotCommand]) -> list[SlotReport]:
        """Run at most one command per slot, all concurrently; reports in the order of the commands.

        Raises `WorkerFailed`, after which the pool is closed.
        """
        return self.receive(self.send(commands))

    @abstractmethod
    def send(self, commands: Sequence[SlotCommand]) -> Ticket:
        """Begin what `run` does and come back at once, where others run the slots; else do it here and now.

        Several tickets may be under way if no two name one slot; they are received in the order they were sent.
        """

    @abstractmethod
    def receive(self, ticket: Ticket) -> list[SlotReport]:
        """Wait for the commands of the oldest ticket under way; the observations of its slots are then in `memory`."""

    @abstractmethod
    def pids(self) -> list[int]:
        """Process ids of the workers, none for a local pool."""

    @abstractmethod
    def last_failure(self) -> str:
        """What the latest restart was for; empty when there was none."""

    @abstractmethod
    def close(self) -> None:
        """Free every simulator and end every worker; may be called again."""


def run_command(slot: Slot, command: SlotCommand, memory: SlotMemory) -> SlotReport:
    """Do one command and leave the slot's new observation in `memory`."""
    if command.kind == "reset":
        report = slot.reset(command.start)
    else:
        assert command.action_TA is not None
        if command.kind == "step":
            report = slot.step(command.action_TA)
        else:
            report = slot.replay(command.start, command.action_TA)
    observation = slot.observe()
    if not memory.layout.observation.state_dim:  # not asked for, or none there is
        observation = {key: value for key, value in observation.items() if key != "state"}
    if memory.layout.observation.privileged_dim:
        observation = {**observation, "privileged": slot.privileged()}
    memory.write(command.slot, observation)
    return report


class LocalPool(Pool):
    """Every slot in this process, one after the other: right when a step costs microseconds."""

    def __init__(self, setup: SlotSetup, *, on_worker_error: OnWorkerError = "raise") -> None:
        self._setup = setup
        self._on_worker_error = on_worker_error
        self.memory = SlotMemory.private(setup.memory)
        self._slots = [setup.build() for _ in range(setup.memory.num_slots)]
        self._last_failure = ""

    def send(self, commands: Sequence[SlotCommand]) -> Ticket:
        """See `Pool.send`."""
        return Ticket(commands, {command.slot: self._run(command) for command in commands})

    def receive(self, ticket: Ticket) -> list[SlotReport]:
        """See `Pool.receive`."""
        return ticket.answers()

    def pids(self) -> list[int]:
        """No process."""
        return []

    def last_failure(self) -> str:
        """See `Pool.last_failure`."""
        return self._last_failure

    def close(self) -> None:
        """See `Pool.close`."""
        slots, self._slots = self._slots, []
        for slot in slots:
            slot.close()

    def _run(self, command: SlotCommand) -> SlotReport:
        try:
            return run_command(self._slots[command.slot], command, self.memory)
        except VLAZooError:
            self._give_up()
            raise
        except Exception as error:
            what = f"{describe(self._setup, command)}: {type(error).__name__}: {error}"
            if self._on_worker_error == "raise":
                self._give_up()
                raise WorkerFailed(what) from error
        self._last_failure = what
        warn_of_restart(what)
        return self._run_anew(command)

    def _run_anew(self, command: SlotCommand) -> SlotReport:
        """Build the slot again; its step is lost, its reset is done again, once."""
        with contextlib.suppress(Exception):  # it has failed; what it still holds need not come off cleanly
            self._slots[command.slot].close()
        try:
            self._slots[command.slot] = self._setup.build()
            if command.kind == "step":
                return SlotReport(truncated=True, lost=True)
            return run_command(self._slots[command.slot], command, self.memory)
        except VLAZooError:
            self._give_up()
            raise
        except Exception as error:
            self._give_up()
            where = describe(self._setup, command)
            raise WorkerFailed(f"{where}, started anew: {type(error).__name__}: {error}") from error

    def _give_up(self) -> None:
        """Close what comes off; what has failed says why, not what closing meets."""
        slots, self._slots = self._slots, []
        for slot in slots:
            with contextlib.suppress(Exception):
                slot.close()


def describe(setup: SlotSetup, command: SlotCommand) -> str:
    """Env, slot, task and trial of a command, as errors name them."""
    return f"{describe_cell(setup.env_id, setup.tasks, command.slot, command.start)}, during {command.kind}"


def describe_cell(env_id: str, tasks: tuple[Task, ...], slot: int, start: StartState) -> str:
    """Env, slot, task and trial of an episode."""
    return (
        f"{env_id}, slot {slot}, task {start.task_id} ({tasks[start.task_id].name}), trial {start.trial_id}"
    )


def warn_of_restart(why: str) -> None:
    """Say that a worker is started anew."""
    warnings.warn(
        f"{why}. It is started anew; episodes that were running in it are lost and counted as such",
        WorkerRestarted,
        stacklevel=2,
    )
