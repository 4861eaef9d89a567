"""`AbsentPool`: stands in for slots that other processes of a run own, where an environment must be there."""

from __future__ import annotations

from collections.abc import Sequence

from vla_gym.workers.pool import Pool, SlotCommand, Ticket
from vla_gym.workers.shared_memory import MemoryLayout, SlotMemory
from vla_gym.workers.sub_env import SlotReport


class AbsentPool(Pool):
    """Every reset and replay succeeds at once, and nothing is ever seen; steps are refused."""

    def __init__(self, layout: MemoryLayout) -> None:
        self.memory = SlotMemory.private(layout)

    def send(self, commands: Sequence[SlotCommand]) -> Ticket:
        """See `vla_gym.workers.pool.Pool.send`."""
        assert all(command.kind != "step" for command in commands), "these slots are stepped elsewhere"
        return Ticket(commands, {command.slot: SlotReport() for command in commands})

    def receive(self, ticket: Ticket) -> list[SlotReport]:
        """See `vla_gym.workers.pool.Pool.receive`."""
        return ticket.answers()

    def pids(self) -> list[int]:
        """No process."""
        return []

    def last_failure(self) -> str:
        """Nothing fails."""
        return ""

    def close(self) -> None:
        """Nothing is held."""
