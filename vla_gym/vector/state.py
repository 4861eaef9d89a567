"""The state of a vector environment as JSON values.

Saved is only the start state of each sub-environment's episode and the actions executed since; loading replays them
without rendering. So saving needs no simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vla_gym.errors import BadValue, shown
from vla_gym.specs import Benchmark
from vla_gym.vector.start_states import Schedule, checked_start
from vla_gym.vector.step import EpisodeTable
from vla_gym.workers.messages import Command, Report, actions_from_text, actions_to_text

VERSION = 1


def save(table: EpisodeTable, schedule: Schedule, benchmark: Benchmark) -> dict[str, Any]:
    """Return the state as JSON values."""
    now = table.now
    nothing_A = np.zeros((0, benchmark.action_dim), dtype=np.float32)
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
        for env, log in enumerate(table.log)
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
    if len(state["slots"]) != len(table.log):
        raise BadValue(f"saved environment state has {len(state['slots'])} slots, this one {len(table.log)}")
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
            table.begin(env, None)
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
            table.now.lost_n[command.slot] = table.now.truncated_n[command.slot] = True
