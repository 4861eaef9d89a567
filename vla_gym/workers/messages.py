"""Messages and memory between a parent and those who run its sub-environments.

Messages are JSON, one per worker and decision:

    parent -> worker    the setup, once; then lists of commands
    worker -> parent    "ready"; then one report per command; or a failure, after which the worker ends

Observations are in shared memory, and so are the actions of steps, where memory is shared; else actions travel in the
message, as base64, and observations behind it (see `vla_gym.workers.remote_pool`).
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from vla_gym import errors
from vla_gym.errors import VLAZooError
from vla_gym.observation import ObservationLayout
from vla_gym.specs import RewardRule, StartState, Task

_ALIGN = 64  # bytes, one cache line


@dataclass(frozen=True, kw_only=True)
class EpisodeStats:
    """One finished episode."""

    total_reward: float
    """Sum of the rewards paid."""
    length: int
    """Simulator steps."""
    success_once: bool
    """Whether it was solved at any step."""
    success_at_end: bool
    """Whether it was solved in the last state."""
    seconds: float
    """Wall-clock seconds from the reset's end to the last step's end."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Outcome of one command."""

    start_state: str = ""
    """Hash of the simulator state in which the episode began, after a reset or a replay; empty after a step."""
    step_rewards: tuple[float, ...] = ()
    """Reward of each simulator step really run, at most K."""
    success: bool = False
    """Whether the task was solved at any step of this decision."""
    terminated: bool = False
    """The task's own rule ended the episode."""
    truncated: bool = False
    """A time limit (or the loss of a worker) ended it."""
    lost: bool = False
    """The worker failed with the episode; nothing else here is meaningful."""
    episode: EpisodeStats | None = None
    """Statistics, on the episode's last decision only."""


LOST = Report(truncated=True, lost=True)


@dataclass(frozen=True, kw_only=True)
class Command:
    """One thing to do with the sub-environment of one slot; its observation afterwards is rendered once."""

    slot: int
    start: StartState
    """Start of the episode: the new one for `reset` and `replay`, the present one for `step`."""
    kind: Literal["reset", "step", "replay"]
    action_TA: np.ndarray | None = field(default=None, compare=False)
    """Float32 `[K, A]` of a step, or the `[T, A]` log of a replay."""


@dataclass(frozen=True, kw_only=True)
class MemoryLayout:
    """Sizes of everything in the block: N slots, chunks `[K, A]`, and the observation of each slot."""

    num_slots: int
    chunk: int
    action_dim: int
    observation: ObservationLayout

    def arrays(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Name -> (shape, dtype), slots first."""
        fields: dict[str, tuple[tuple[int, ...], np.dtype]] = {
            "action": ((self.num_slots, self.chunk, self.action_dim), np.dtype(np.float32))
        }
        for key, (shape, dtype) in self.observation.arrays().items():
            fields[key] = ((self.num_slots, *shape), dtype)
        return fields

    def size(self) -> int:
        """Return the bytes of the block."""
        return sum(_aligned(shape, dtype) for shape, dtype in self.arrays().values())


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return -(-math.prod(shape) * dtype.itemsize // _ALIGN) * _ALIGN


class SlotMemory:
    """NumPy views `action` `[N, K, A]` and one `[N, ...]` per observation key, over one block of memory.

    It is this process's own, or that behind the file descriptor `fd` of `anonymous_file`.
    """

    def __init__(self, layout: MemoryLayout, fd: int = -1) -> None:
        self.layout = layout
        block = mmap.mmap(fd, layout.size())
        views: dict[str, np.ndarray] = {}
        position = 0
        for name, (shape, dtype) in layout.arrays().items():
            views[name] = np.ndarray(shape, dtype, buffer=block, offset=position)
            position += _aligned(shape, dtype)
        self.action_NKA: np.ndarray = views.pop("action")
        self.observation: dict[str, np.ndarray] = views

    def write(self, slot: int, observation: Mapping[str, np.ndarray]) -> None:
        """Copy one slot's observation in; `ValueError` when a key, shape or dtype is not as declared."""
        if observation.keys() != self.observation.keys():
            raise ValueError(f"observation has keys {sorted(observation)}, declared are {sorted(self.observation)}")
        for key, value in observation.items():
            target = self.observation[key][slot]
            if value.shape != target.shape or value.dtype != target.dtype:
                raise ValueError(
                    f"observation '{key}' is {value.dtype}{list(value.shape)}, "
                    f"declared is {target.dtype}{list(target.shape)}"
                )
            target[...] = value


@dataclass(frozen=True, kw_only=True)
class SubEnvSetup:
    """Common to all sub-environments of a pool."""

    env_id: str
    simulator: str
    """Entry point "module:Class"."""
    simulator_kwargs: Mapping[str, Any]
    tasks: tuple[Task, ...]
    rule: RewardRule
    memory: MemoryLayout
    draw_every: int = 1
    """Simulator steps of an episode from one drawn observation to the next."""


@dataclass(eq=False)
class PendingCommands:
    """Commands that were sent: `Pool.receive` takes them once and returns their reports."""

    commands: Sequence[Command]
    """In the order of their reports."""
    reports: dict[int, Report] = field(default_factory=dict)
    """Slot -> report, as far as they are known."""
    jobs: dict[int, list[Command]] = field(default_factory=dict)
    """Worker -> commands without an answer."""

    def ordered_reports(self) -> list[Report]:
        """Every report in the order of the commands, once all are known."""
        return [self.reports[command.slot] for command in self.commands]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The exception that ended a worker."""

    kind: str
    """Name of its class."""
    text: str
    """Its message."""
    command: int = 0
    """Index of the command that raised it; -1 while the sub-environments were being built."""

    def user_error(self) -> VLAZooError | None:
        """The same error if it is one of `vla_gym.errors` (such as a missing asset), whose message says enough."""
        known = getattr(errors, self.kind, None)
        return known(self.text) if isinstance(known, type) and issubclass(known, VLAZooError) else None


def write_setup(setup: SubEnvSetup, slots: Sequence[int]) -> bytes:
    """The first message: the setup, and the slots of this worker."""
    plain = dataclasses.replace(setup, simulator_kwargs=dict(setup.simulator_kwargs))
    return json.dumps({"slots": list(slots), **dataclasses.asdict(plain)}).encode()


def read_setup(message: bytes) -> tuple[SubEnvSetup, list[int]]:
    """Inverse of `write_setup`."""
    fields = json.loads(message)
    slots = fields.pop("slots")
    observation = fields["memory"].pop("observation")
    observation["cameras"] = tuple(observation["cameras"])
    fields["memory"] = MemoryLayout(observation=ObservationLayout(**observation), **fields["memory"])
    fields["tasks"] = tuple(Task(**task) for task in fields["tasks"])
    fields["rule"] = RewardRule(**fields["rule"])
    return SubEnvSetup(**fields), slots


def write_commands(
    commands: Sequence[Command], memory: SlotMemory | None = None, slots: Sequence[int] | None = None
) -> bytes:
    """Commands as a message. With `memory` the actions of steps go there instead; `slots` renumbers the commands."""
    entries = []
    for number, command in enumerate(commands):
        entry: dict[str, Any] = {
            "slot": command.slot if slots is None else slots[number],
            "kind": command.kind,
            "task_id": command.start.task_id,
            "trial_id": command.start.trial_id,
        }
        if memory is not None and command.kind == "step":
            memory.action_NKA[command.slot] = command.action_TA
        elif command.action_TA is not None:
            entry["actions"] = actions_to_text(command.action_TA)
        entries.append(entry)
    return json.dumps(entries).encode()


def read_commands(message: bytes, memory: SlotMemory) -> list[Command]:
    """Inverse of `write_commands`; the actions of a step that are not in the message are a view of `memory`."""
    action_dim = memory.layout.action_dim
    commands = []
    for entry in json.loads(message):
        action_TA: np.ndarray | None = None
        if "actions" in entry:
            action_TA = actions_from_text(entry["actions"], action_dim)
        elif entry["kind"] == "step":
            action_TA = memory.action_NKA[entry["slot"]]
        start = StartState(task_id=entry["task_id"], trial_id=entry["trial_id"])
        commands.append(Command(slot=entry["slot"], start=start, kind=entry["kind"], action_TA=action_TA))
    return commands


def write_reports(reports: Sequence[Report]) -> bytes:
    """Reports as a message; Python writes and reads floats of JSON exactly."""
    entries = [
        {**vars(report), "episode": None if report.episode is None else vars(report.episode)} for report in reports
    ]
    return json.dumps(entries).encode()


def write_failure(error: Exception, *, command: int = 0) -> bytes:
    """A failure as a message; `command` as in `Failure`."""
    failure = Failure(kind=type(error).__name__, text=str(error), command=command)
    return json.dumps(dataclasses.asdict(failure)).encode()


def read_reply(message: bytes) -> list[Report] | Failure:
    """Inverse of `write_reports` and `write_failure`."""
    fields = json.loads(message)
    if isinstance(fields, dict):
        return Failure(**fields)
    for entry in fields:
        entry["step_rewards"] = tuple(entry["step_rewards"])
        entry["episode"] = EpisodeStats(**entry["episode"]) if entry["episode"] else None
    return [Report(**entry) for entry in fields]


def actions_to_text(action_TA: np.ndarray) -> str:
    """Float32 `[T, A]` -> base64 of its little-endian bytes."""
    return base64.b64encode(action_TA.astype("<f4").tobytes()).decode("ascii")


def actions_from_text(text: str, action_dim: int) -> np.ndarray:
    """Inverse of `actions_to_text`: `[T, action_dim]`."""
    flat = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4").astype(np.float32)
    return flat.reshape(-1, action_dim)
