"""Sub-environments in other processes of the run, maybe on other machines: `RemotePool` sends, `serve` answers.

There is one connection for each server, which runs some slots in a pool of its own. It answers a message of commands
by two: its pool's last failure as text, and the reports (or a failure, after which it closes the connection). Messages
are those of `vla_gym.workers.messages` without shared memory. The bytes of those slots' observations follow, from the
server's memory to the client's.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

import numpy as np

from vla_gym.errors import LostRank, WorkerFailed
from vla_gym.workers.messages import (
    Command,
    Failure,
    MemoryLayout,
    PendingCommands,
    Report,
    SlotMemory,
    read_commands,
    read_reply,
    write_commands,
    write_failure,
    write_reports,
)
from vla_gym.workers.pool import Pool
from vla_gym.workers.process_pool import assign_slots


class RemotePool(Pool):
    """N slots on servers with equal shares, as `assign_slots` says; server i is the process at `connections[i]`."""

    def __init__(self, layout: MemoryLayout, connections: Sequence[Connection], *, num_stages: int = 1) -> None:
        self.memory = SlotMemory(layout)
        self._connections = list(connections)
        for connection in connections:
            _send_at_once(connection)
        self._place = {
            slot: (number, place)
            for number, slots in enumerate(assign_slots(layout.num_slots, len(connections), num_stages))
            for place, slot in enumerate(slots)
        }
        """Slot -> its server, and its number there."""
        self._closed = False

    def send(self, commands: Sequence[Command]) -> PendingCommands:
        pending = PendingCommands(commands)
        for command in commands:
            pending.jobs.setdefault(self._place[command.slot][0], []).append(command)
        for number, job in pending.jobs.items():
            message = write_commands(job, slots=[self._place[command.slot][1] for command in job])
            try:
                self._connections[number].send_bytes(message)
            except OSError as error:
                raise self._server_lost(number, error) from error
        return pending

    def receive(self, pending: PendingCommands) -> list[Report]:
        for number, job in pending.jobs.items():
            self.last_failure = self._recv(number).decode() or self.last_failure
            reply = read_reply(self._recv(number))
            if isinstance(reply, Failure):
                self.close()
                failed = WorkerFailed(f"env server {number} raised {reply.kind}: {reply.text}")
                raise reply.user_error() or failed
            self._read_observations(number, [command.slot for command in job])
            pending.reports.update(zip((command.slot for command in job), reply, strict=True))
        return pending.ordered_reports()

    def close(self) -> None:
        """Close the connections; the servers then end their simulators."""
        if not self._closed:
            self._closed = True
            for connection in self._connections:
                connection.close()

    def _recv(self, number: int) -> bytes:
        try:
            return self._connections[number].recv_bytes()
        except (EOFError, OSError) as error:
            raise self._server_lost(number, error) from error

    def _read_observations(self, number: int, slots: Sequence[int]) -> None:
        for part in _observations(self.memory, slots):
            while part:
                try:
                    size = os.readv(self._connections[number].fileno(), [part])
                except OSError as error:
                    raise self._server_lost(number, error) from error
                if not size:
                    raise self._server_lost(number, EOFError())
                part = part[size:]

    def _server_lost(self, number: int, error: Exception) -> LostRank:
        self.close()
        return LostRank(f"env server {number} has gone ({type(error).__name__}); its own message says why")


def serve(connection: Connection, pool: Pool) -> None:
    """Run the commands that arrive until the other end closes, then close the pool. Raises the pool's errors."""
    _send_at_once(connection)
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
    commands = read_commands(message, pool.memory)
    try:
        reports = pool.run(commands)
    except Exception as error:
        connection.send_bytes(b"")
        connection.send_bytes(write_failure(error))
        raise
    slots = [command.slot for command in commands]
    connection.send_bytes(pool.last_failure.encode())
    connection.send_bytes(write_reports(reports))
    for part in _observations(pool.memory, slots):
        while part:
            part = part[os.write(connection.fileno(), part) :]


def _observations(memory: SlotMemory, slots: Sequence[int]) -> Iterator[memoryview]:
    """Yield the bytes of some slots in a memory, key by key and slot by slot; those of adjacent slots are one piece."""
    runs = np.split(np.array(slots), np.flatnonzero(np.diff(slots) != 1) + 1)
    for array in memory.observation.values():
        for run in runs:
            yield array[run[0] : run[-1] + 1].data.cast("B")


def _send_at_once(connection: Connection) -> None:
    # Else TCP holds back the end of an answer until the last one is acknowledged, 40 ms on Linux.
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
