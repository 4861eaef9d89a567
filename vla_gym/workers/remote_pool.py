"""Slots that run in other processes of the run, maybe on other machines: `RemotePool` asks, `serve` answers.

One connection for each server, which runs some adjacent slots in a pool of its own. A message of commands is answered
by two messages: the reports (or a failure, after which the server hangs up), and the observations of those slots.
Messages are those of `vla_gym.workers.messages`, with the actions of steps inside, as no memory is shared.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np

from vla_gym import errors
from vla_gym.errors import LostRank, VLAZooError, WorkerFailed
from vla_gym.specs import StartState
from vla_gym.workers.messages import (
    Failure,
    actions_from_text,
    actions_to_text,
    read_reply,
    write_failure,
    write_reports,
)
from vla_gym.workers.pool import Pool, SlotCommand, Ticket
from vla_gym.workers.process_pool import deal_slots
from vla_gym.workers.shared_memory import MemoryLayout, SlotMemory
from vla_gym.workers.sub_env import SlotReport


class RemotePool(Pool):
    """N slots dealt to servers in equal parts, as `deal_slots` does; server i is the process at `connections[i]`."""

    def __init__(
        self, layout: MemoryLayout, connections: Sequence[Connection], *, num_stages: int = 1
    ) -> None:
        if layout.num_slots % len(connections):
            raise errors.BadValue(
                f"{layout.num_slots} slots are not dealt evenly to {len(connections)} servers"
            )
        self.memory = SlotMemory.private(layout)
        self._connections = list(connections)
        self._place = {
            slot: (number, place)
            for number, slots in enumerate(deal_slots(layout.num_slots, len(connections), num_stages))
            for place, slot in enumerate(slots)
        }
        self._last_failure = ""
        self._closed = False

    def send(self, commands: Sequence[SlotCommand]) -> Ticket:
        """See `vla_gym.workers.pool.Pool.send`."""
        ticket = Ticket(commands)
        for command in commands:
            ticket.jobs.setdefault(self._place[command.slot][0], []).append(command)
        for number, job in ticket.jobs.items():
            places = [self._place[command.slot][1] for command in job]
            self._tell(number, write_remote_commands(job, places))
        return ticket

    def receive(self, ticket: Ticket) -> list[SlotReport]:
        """See `vla_gym.workers.pool.Pool.receive`."""
        for number, job in ticket.jobs.items():
            reports = self._hear(number)
            self._read_observations(number, [command.slot for command in job])
            ticket.reports.update(zip((command.slot for command in job), reports, strict=True))
        return ticket.answers()

    def pids(self) -> list[int]:
        """None of this process's children runs a slot."""
        return []

    def last_failure(self) -> str:
        """See `vla_gym.workers.pool.Pool.last_failure`."""
        return self._last_failure

    def close(self) -> None:
        """Hang up; the servers then end their simulators."""
        if not self._closed:
            self._closed = True
            for connection in self._connections:
                connection.close()

    def _tell(self, number: int, message: bytes) -> None:
        try:
            self._connections[number].send_bytes(message)
        except OSError as error:
            raise self._gone(number, error) from error

    def _hear(self, number: int) -> list[SlotReport]:
        try:
            self._last_failure = self._connections[number].recv_bytes().decode() or self._last_failure
            reply = read_reply(self._connections[number].recv_bytes())
        except (EOFError, OSError) as error:
            raise self._gone(number, error) from error
        if isinstance(reply, Failure):
            self.close()
            known = getattr(errors, reply.kind, None)
            if isinstance(known, type) and issubclass(known, VLAZooError):
                raise known(reply.text)
            raise WorkerFailed(f"env server {number} raised {reply.kind}: {reply.text}")
        return reply

    def _read_observations(self, number: int, slots: Sequence[int]) -> None:
        try:
            data = self._connections[number].recv_bytes()
        except (EOFError, OSError) as error:
            raise self._gone(number, error) from error
        position = 0
        for array in self.memory.observation.values():
            part = array[slots]
            array[slots] = np.frombuffer(data, part.dtype, part.size, position).reshape(part.shape)
            position += part.nbytes

    def _gone(self, number: int, error: Exception) -> LostRank:
        self.close()
        return LostRank(f"env server {number} has gone ({type(error).__name__}); its own message says why")


def serve(connection: Connection, pool: Pool) -> None:
    """Run the commands that come until the other end hangs up, then close the pool. Raises what the pool raises."""
    try:
        while True:
            try:
                message = connection.recv_bytes()
            except (EOFError, OSError):
                return
            _answer(connection, pool, message)
    finally:
        pool.close()
        connection.close()


def _answer(connection: Connection, pool: Pool, message: bytes) -> None:
    commands = read_remote_commands(message, pool.memory.layout.action_dim)
    try:
        reports = pool.run(commands)
    except Exception as error:
        connection.send_bytes(b"")
        failure = Failure(kind=type(error).__name__, text=str(error), command=0)
        connection.send_bytes(write_failure(failure))
        raise
    slots = [command.slot for command in commands]
    connection.send_bytes(pool.last_failure().encode())
    connection.send_bytes(write_reports(reports))
    connection.send_bytes(b"".join(array[slots].tobytes() for array in pool.memory.observation.values()))


def write_remote_commands(commands: Sequence[SlotCommand], places: Sequence[int]) -> bytes:
    """Commands as a message in which their slots have the numbers `places`."""
    entries = [
        {
            "slot": place,
            "kind": command.kind,
            "task_id": command.start.task_id,
            "trial_id": command.start.trial_id,
            "actions": None if command.action_TA is None else actions_to_text(command.action_TA),
        }
        for command, place in zip(commands, places, strict=True)
    ]
    return json.dumps(entries).encode()


def read_remote_commands(message: bytes, action_dim: int) -> list[SlotCommand]:
    """The way back of `write_remote_commands`."""
    return [
        SlotCommand(
            slot=entry["slot"],
            start=StartState(task_id=entry["task_id"], trial_id=entry["trial_id"]),
            kind=entry["kind"],
            action_TA=None if entry["actions"] is None else actions_from_text(entry["actions"], action_dim),
        )
        for entry in json.loads(message)
    ]
