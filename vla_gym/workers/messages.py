"""What a parent and its workers say to each other: JSON, one message per worker and decision.

    parent -> worker    the setup, once; then lists of commands
    worker -> parent    "ready"; then one report per command; or a failure, after which the worker ends

Arrays do not travel here: actions and observations are in shared memory. Only the action log of a replay
goes along, as base64.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_gym.observation import ObservationLayout
from vla_gym.rewards import RewardRule
from vla_gym.specs import StartState, Task
from vla_gym.workers.pool import SlotCommand, SlotSetup
from vla_gym.workers.shared_memory import MemoryLayout, SlotMemory
from vla_gym.workers.sub_env import EpisodeStats, SlotReport


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A worker's last words."""

    kind: str
    """Name of the exception's class."""
    text: str
    """Its message."""
    command: int
    """Which of the commands it was at; -1 while the slots were being built."""


def write_setup(setup: SlotSetup, slots: Sequence[int]) -> bytes:
    """The first message: what the slots are made of, and which of them are this worker's."""
    fields = {
        "slots": list(slots),
        "env_id": setup.env_id,
        "simulator": setup.simulator,
        "simulator_kwargs": dict(setup.simulator_kwargs),
        "tasks": [dataclasses.asdict(task) for task in setup.tasks],
        "rule": dataclasses.asdict(setup.rule),
        "memory": dataclasses.asdict(setup.memory),
    }
    return json.dumps(fields).encode()


def read_setup(message: bytes) -> tuple[SlotSetup, list[int]]:
    """The way back of `write_setup`."""
    fields = json.loads(message)
    observation = fields["memory"].pop("observation")
    observation["cameras"] = tuple(observation["cameras"])
    memory = MemoryLayout(observation=ObservationLayout(**observation), **fields["memory"])
    setup = SlotSetup(
        env_id=fields["env_id"],
        simulator=fields["simulator"],
        simulator_kwargs=fields["simulator_kwargs"],
        tasks=tuple(Task(**task) for task in fields["tasks"]),
        rule=RewardRule(**fields["rule"]),
        memory=memory,
    )
    return setup, fields["slots"]


def write_commands(commands: Sequence[SlotCommand], memory: SlotMemory) -> bytes:
    """Commands as a message; the actions of steps go into `memory`."""
    entries = []
    for command in commands:
        entry: dict[str, Any] = {
            "slot": command.slot,
            "kind": command.kind,
            "task_id": command.start.task_id,
            "trial_id": command.start.trial_id,
        }
        if command.kind == "step":
            memory.action_NKA[command.slot] = command.action_TA
        elif command.kind == "replay":
            assert command.action_TA is not None
            entry["actions"] = actions_to_text(command.action_TA)
        entries.append(entry)
    return json.dumps(entries).encode()


def read_commands(message: bytes, memory: SlotMemory) -> list[SlotCommand]:
    """The way back of `write_commands`; a step's actions are a view of `memory`."""
    action_dim = memory.action_NKA.shape[2]
    commands = []
    for entry in json.loads(message):
        action_TA: np.ndarray | None = None
        if entry["kind"] == "step":
            action_TA = memory.action_NKA[entry["slot"]]
        elif entry["kind"] == "replay":
            action_TA = actions_from_text(entry["actions"], action_dim)
        start = StartState(task_id=entry["task_id"], trial_id=entry["trial_id"])
        commands.append(SlotCommand(slot=entry["slot"], start=start, kind=entry["kind"], action_TA=action_TA))
    return commands


def write_reports(reports: Sequence[SlotReport]) -> bytes:
    """Reports as a message; Python writes and reads floats of JSON exactly."""
    return json.dumps([dataclasses.asdict(report) for report in reports]).encode()


def write_failure(failure: Failure) -> bytes:
    """A failure as a message."""
    return json.dumps(dataclasses.asdict(failure)).encode()


def read_reply(message: bytes) -> list[SlotReport] | Failure:
    """A worker's answer."""
    fields = json.loads(message)
    if isinstance(fields, dict):
        return Failure(**fields)
    reports = []
    for entry in fields:
        episode = entry.pop("episode")
        reports.append(
            SlotReport(
                **{**entry, "step_rewards": tuple(entry["step_rewards"])},
                episode=EpisodeStats(**episode) if episode else None,
            )
        )
    return reports


def actions_to_text(action_TA: np.ndarray) -> str:
    """Float32 `[T, A]` -> base64 of its little-endian bytes."""
    return base64.b64encode(action_TA.astype("<f4").tobytes()).decode("ascii")


def actions_from_text(text: str, action_dim: int) -> np.ndarray:
    """The way back of `actions_to_text`: `[T, action_dim]`."""
    flat = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4").astype(np.float32)
    return flat.reshape(-1, action_dim)
