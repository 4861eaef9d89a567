"""`SlotRunner`: commands go to the pool, reports come back into the table; the inside of a vector environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vla_gym.errors import WorkerFailed
from vla_gym.specs import Benchmark, StartState
from vla_gym.vector.infos import Decision, episode_info, masked
from vla_gym.vector.start_states import Schedule
from vla_gym.workers.pool import Pool, SlotCommand, Ticket, describe_cell
from vla_gym.workers.slot_table import SlotTable

MAX_LOSSES = 3
"""Episodes that one slot may lose in a row; workers die by accident, but not three times."""
ALL = slice(None)
"""Every slot."""


class SlotRunner:
    """N slots: who runs them (`pool`), what is known of them (`table`), and what they get next (`schedule`)."""

    def __init__(
        self, benchmark: Benchmark, num_envs: int, chunk: int, schedule: Schedule, pool: Pool
    ) -> None:
        self.schedule = schedule
        self.table = SlotTable(num_envs, benchmark.tasks)
        self.pool = pool
        self.num_under_way = 0
        """Tickets sent and not yet received."""
        self._benchmark = benchmark
        self._shape = (num_envs, chunk)

    def begin_commands(
        self, slots: Sequence[int], cells: Mapping[int, StartState] | None = None
    ) -> list[SlotCommand]:
        """Reset commands of the slots that get an episode; the others are retired at once."""
        commands = []
        for slot in slots:
            start = cells[slot] if cells else self._draw(slot)
            if start is None:
                self.table.retire(slot)
            else:
                commands.append(SlotCommand(slot=slot, start=start, kind="reset"))
        return commands

    def step_commands(self, slots: Sequence[int], actions: Sequence[np.ndarray]) -> list[SlotCommand]:
        """One decision of each of `slots`, with its actions `[K, A]`."""
        return [
            SlotCommand(slot=slot, start=self.table.start(slot), kind="step", action_TA=action_KA)
            for slot, action_KA in zip(slots, actions, strict=True)
        ]

    def run(self, commands: Sequence[SlotCommand]) -> Decision:
        """Run commands and enter their reports in the table."""
        return self.receive(self.send(commands))

    def send(self, commands: Sequence[SlotCommand]) -> Ticket:
        """Begin what `run` does; see `Pool.send`."""
        ticket = self.pool.send(commands)
        self.num_under_way += 1
        return ticket

    def receive(self, ticket: Ticket) -> Decision:
        """Wait for the oldest ticket under way and enter its reports in the table."""
        reports = self.pool.receive(ticket)
        self.num_under_way -= 1
        decision = self.no_decision()
        for command, report in zip(ticket.commands, reports, strict=True):
            if command.kind == "reset":
                self.table.begin(command.slot, command.start, report.fingerprint)
            else:
                assert command.action_TA is not None
                executed = len(report.step_rewards)
                self.table.record(command.slot, report, command.action_TA[:executed].copy())
                decision.enter(command.slot, report)
        self._check_losses()
        return decision

    def no_decision(self) -> Decision:
        """Nothing was run."""
        return Decision(*self._shape)

    def where(self, slot: int) -> str:
        """Env, slot, task and trial of a slot's present episode, for errors."""
        return describe_cell(self._benchmark.id, self._benchmark.tasks, slot, self.table.start(slot))

    def observe(self, slots: slice = ALL) -> dict[str, Any]:
        """Fresh arrays of the last observation of `slots`, and their instructions."""
        arrays = {key: value[slots].copy() for key, value in self.pool.memory.observation.items()}
        return {**arrays, "instruction": self.table.instructions()[slots]}

    def infos(
        self, decision: Decision, slots: slice = ALL, mask_n: np.ndarray | None = None
    ) -> dict[str, Any]:
        """Batched info of `slots`; of those in `mask_n` alone where it is given."""
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
        chosen = {key: value[slots] for key, value in fields.items()}
        if mask_n is None:
            mask_n = np.ones(len(chosen["idle"]), dtype=np.bool_)
        return masked(chosen, mask_n) | episode_info(decision.episodes[slots])

    def _draw(self, slot: int) -> StartState | None:
        if self.schedule.kind == "grid" and self.table.lost[slot]:
            return self.table.start(slot)  # no cell of a grid goes missing
        start = self.schedule.cell(slot, int(self.table.episodes[slot]))
        if start is not None:
            self.table.episodes[slot] += 1
        return start

    def _check_losses(self) -> None:
        """A slot that loses episode after episode has no accidents."""
        slot = int(self.table.losses.argmax())
        if self.table.losses[slot] >= MAX_LOSSES:
            raise WorkerFailed(
                f"{MAX_LOSSES} episodes in a row were lost [{self.where(slot)}]. "
                f"The last failure: {self.pool.last_failure()}"
            )
