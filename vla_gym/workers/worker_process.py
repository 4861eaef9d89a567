"""The parent's end of one worker: start it, talk to it, learn why it failed, end it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import IO

from vla_gym.workers.messages import write_setup
from vla_gym.workers.pool import SlotSetup

STDERR_LINES = 4
"""Lines of a failed worker's stderr that an error quotes."""
_TAIL_BYTES = 8192


class WorkerProcess:
    """One child, started at once; `setup` is sent, its "ready" is the first message to `receive`."""

    def __init__(
        self, setup: SlotSetup, slots: Sequence[int], environ: Mapping[str, str], memory_fd: int
    ) -> None:
        self.slots = tuple(slots)
        self.owed = 1
        """Answers that have not come."""
        ours, theirs = socket.socketpair()
        # Simulators talk a lot while they are imported: kept in a nameless file, shown when they fail.
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed in `end`
        with theirs:
            command = [sys.executable, "-P", "-m", "vla_gym.workers.worker"]
            command += ["--socket", str(theirs.fileno()), "--memory", str(memory_fd)]
            self._process = subprocess.Popen(  # noqa: S603  our own module
                command,
                pass_fds=(theirs.fileno(), memory_fd),
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
            )
        self.connection = Connection(ours.detach())
        self._send(write_setup(setup, slots))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def send(self, message: bytes) -> None:
        """Ask for something, also before earlier answers came; a dead worker is noticed by its missing answer."""
        self.owed += 1
        self._send(message)

    def receive(self) -> bytes:
        """The answer. Raises `EOFError` or `ConnectionError` when the worker is gone."""
        message = self.connection.recv_bytes()
        self.owed -= 1
        return message

    def fate(self) -> str:
        """How the process ended, for an error message."""
        try:
            code = self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            return "hung up without ending"
        if code >= 0:
            return f"ended with exit code {code}"
        hint = " (is the machine out of memory?)" if -code == signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-code).name}{hint}"

    def last_output(self) -> str:
        """The last lines of its stdout and stderr, joined by " | "; empty when it said nothing."""
        size = os.fstat(self._output.fileno()).st_size
        tail = os.pread(self._output.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        lines = [line.strip() for line in tail.decode("utf-8", "replace").splitlines() if line.strip()]
        return " | ".join(lines[-STDERR_LINES:])

    def hang_up(self) -> None:
        """Ask the worker to end: at once when it is in the middle of something, else in good order."""
        self.connection.close()
        if self.owed:
            self.kill()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def end(self, grace: float) -> None:
        """Wait up to `grace` seconds after `hang_up`, then kill; the process is gone when this returns."""
        try:
            self._process.wait(timeout=grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def _send(self, message: bytes) -> None:
        try:
            self.connection.send_bytes(message)
        except ConnectionError:
            return  # `receive` finds the same, with the worker's last words before it
