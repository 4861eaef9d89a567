"""Messages between a parent and those who run its sub-environments: JSON, one per worker and decision.

    parent -> worker    the setup, once; then lists of commands
    worker -> parent    "ready"; then one report per command; or a failure, after which the worker ends

Observations are in shared memory, and so are the actions of steps, where memory is shared; else actions travel in the
message, as base64, and observations behind it (see `vla_gym.workers.remote_pool`).
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_gym import errors
from vla_gym.errors import VLAZooError
from vla_gym.observation import ObservationLayout
from vla_gym.rewards import RewardRule
from vla_gym.specs import StartState, Task
from vla_gym.workers.pool import Command, SubEnvSetup
from vla_gym.workers.shared_memory import MemoryLayout, SlotMemory
from vla_gym.workers.sub_env import EpisodeStats, Report


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
