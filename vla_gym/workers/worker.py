"""A worker process: `python -m vla_gym.workers.worker SOCKET_FD MEMORY_FD`.

It hosts some sub-environments, answers each message of commands with one of reports, and ends when its
parent does, however that happens. Nothing of the user's program is imported here.
"""

from __future__ import annotations

import os
import sys
import traceback
from multiprocessing.connection import Connection

from vla_gym.system.child import end_with_parent, leave_signals_to_parent
from vla_gym.workers.messages import SlotMemory, read_commands, read_setup, write_failure, write_reports
from vla_gym.workers.sub_env import Report, SubEnv


def main(socket_fd: int, memory_fd: int) -> int:
    """Serve until the parent closes the connection."""
    leave_signals_to_parent()
    end_with_parent(os.getppid())
    try:
        return _serve(Connection(socket_fd), memory_fd)
    except (EOFError, ConnectionError):
        return 0  # the parent has gone


def _serve(connection: Connection, memory_fd: int) -> int:
    setup, slots = read_setup(connection.recv_bytes())
    memory = SlotMemory.attach(setup.memory, memory_fd)
    os.close(memory_fd)
    try:
        envs = {slot: setup.build() for slot in slots}
    except Exception as error:  # noqa: BLE001  sent to the parent, which raises it with its context
        return _fail(connection, error, command=-1)
    connection.send_bytes(write_reports([]))
    try:
        return _answer(connection, memory, envs)
    finally:
        for env in envs.values():
            env.close()


def _answer(connection: Connection, memory: SlotMemory, envs: dict[int, SubEnv]) -> int:
    while True:
        message = connection.recv_bytes()
        reports: list[Report] = []
        try:
            for command in read_commands(message, memory):
                env = envs[command.slot]
                reports.append(env.run(command))
                memory.write(command.slot, env.observe())
            answer = write_reports(reports)
        except Exception as error:  # noqa: BLE001  sent to the parent, which raises it with its context
            return _fail(connection, error, command=len(reports))
        connection.send_bytes(answer)


def _fail(connection: Connection, error: Exception, *, command: int) -> int:
    traceback.print_exception(error, file=sys.stderr)
    connection.send_bytes(write_failure(error, command=command))
    return 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
