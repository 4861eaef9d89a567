"""The state of a vector environment as JSON values, and the way back.

A slot's state is its start cell and the actions executed since; it is reached again by replay, which
renders nothing on the way. So taking the state asks nothing of a simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vla_gym.errors import BadValue
from vla_gym.specs import Benchmark, StartState
from vla_gym.vector.start_states import Schedule
from vla_gym.workers.messages import actions_from_text, actions_to_text
from vla_gym.workers.pool import SlotCommand
from vla_gym.workers.slot_table import SlotTable
from vla_gym.workers.sub_env import SlotReport

VERSION = 1


def snapshot(table: SlotTable, schedule: Schedule, benchmark: Benchmark) -> dict[str, Any]:
    """Everything `restore` needs."""
    slots: list[dict[str, Any] | None] = []
    for slot in range(len(table.idle)):
        if table.idle[slot]:
            slots.append(None)
            continue
        start = table.start(slot)
        slots.append(
            {
                "task_id": start.task_id,
                "trial_id": start.trial_id,
                "start_state": str(table.start_state[slot]),
                "lost": bool(table.lost[slot]),
                "actions": actions_to_text(table.actions(slot, benchmark.action_dim)),
            }
        )
    return {
        "version": VERSION,
        "env_id": benchmark.id,
        "schedule": schedule.kind,
        "seed": schedule.seed,
        "episodes": table.episodes.tolist(),
        "slots": slots,
    }


def restore(
    state: Mapping[str, Any], table: SlotTable, schedule: Schedule, benchmark: Benchmark
) -> list[SlotCommand]:
    """Check that `state` belongs here; return the replays that lead to it."""
    _check(state, table, schedule, benchmark)
    table.episodes[:] = state["episodes"]
    commands = []
    for slot, entry in enumerate(state["slots"]):
        if entry is None:
            table.retire(slot)
            continue
        commands.append(
            SlotCommand(
                slot=slot,
                start=StartState(task_id=entry["task_id"], trial_id=entry["trial_id"]),
                kind="replay",
                action_TA=actions_from_text(entry["actions"], benchmark.action_dim),
            )
        )
    return commands


def settle(
    state: Mapping[str, Any],
    table: SlotTable,
    commands: Sequence[SlotCommand],
    reports: Sequence[SlotReport],
) -> None:
    """Enter the replays' reports in the table; raise `BadValue` when one began elsewhere."""
    for command, report in zip(commands, reports, strict=True):
        entry = state["slots"][command.slot]
        if report.fingerprint != entry["start_state"]:
            raise BadValue(
                f"slot {command.slot} (task {command.start.task_id}, trial {command.start.trial_id}) began "
                f"in state {report.fingerprint}, saved was {entry['start_state']}: the simulator, its "
                "version or its assets differ from those of the saved run"
            )
        table.begin(command.slot, command.start, report.fingerprint)
        assert command.action_TA is not None
        table.record(command.slot, report, command.action_TA)
        if entry["lost"]:
            table.lost[command.slot] = table.truncated[command.slot] = True


def _check(state: Mapping[str, Any], table: SlotTable, schedule: Schedule, benchmark: Benchmark) -> None:
    expected = {
        "version": VERSION,
        "env_id": benchmark.id,
        "schedule": schedule.kind,
    }
    for key, value in expected.items():
        if state.get(key) != value:
            raise BadValue(f"saved environment state has {key}={state.get(key)!r}, this one has {value!r}")
    if len(state["slots"]) != len(table.idle):
        raise BadValue(f"saved environment state has {len(state['slots'])} slots, this one {len(table.idle)}")
