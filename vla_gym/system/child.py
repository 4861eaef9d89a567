"""Child processes: modules found as here, an end with their parent, and one that does a piece of work after another."""

from __future__ import annotations

import atexit
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection

ORPHAN_CHECK = 1.0
"""Seconds between two checks that the parent still lives (a busy child does not notice a closed connection)."""
MOST_IDLE = 15.0
"""Seconds that a child of `run_child` waits for more work: its modules, and what it has read, stay in memory."""
_DONE = b"done"


def python_path() -> str:
    """Return the PYTHONPATH with which a child finds the same modules as this process."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


def run_child(purpose: str, module: str, *arguments: str) -> None:
    """Have a child process `python -m module`, which calls `do_work`, do its work with `arguments`.

    The child of an earlier call does it where it is still there. `purpose` describes the work for the error.

    Raises `RuntimeError` with the child's last lines if it fails.
    """
    request = json.dumps(arguments).encode()
    child = _children.pop(module, None)
    if child is not None and not child.do(request):  # it had nothing to do and has gone, or a fresh one may do it
        child.end()
        child = None
    if child is None:
        child = _Child(module)
        if not child.do(request):
            raise RuntimeError(f"{purpose} failed: {child.end()}")
    _children[module] = child


def limit_memory(pid: int, most: int) -> None:
    """Have the system refuse a child process more than `most` bytes of its own, where it offers that (Linux)."""
    if hasattr(resource, "prlimit"):
        _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(pid, resource.RLIMIT_DATA, (soft, hard))


class _Child:
    def __init__(self, module: str) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed in `end`
        self._connection, other_end = Pipe()
        with other_end:
            self._process = subprocess.Popen(  # noqa: S603  our own modules
                [sys.executable, "-m", module, str(other_end.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(other_end.fileno(),),
            )

    def do(self, request: bytes) -> bool:
        """Whether the child has done it."""
        try:
            self._connection.send_bytes(request)
            return self._connection.recv_bytes() == _DONE
        except (EOFError, ConnectionError):
            return False
        except BaseException:
            self._process.kill()
            self.end()
            raise

    def end(self) -> str:
        """End the process; return the last lines it wrote, and how it ended where they do not tell."""
        self._connection.close()
        code = self._process.wait()
        with self._output:
            self._output.seek(0)
            said = self._output.read().decode(errors="replace").strip().splitlines()[-3:]
        return " | ".join(said if said and code > 0 else [*said, f"it {exit_words(code)}"])


_children: dict[str, _Child] = {}
"""Module -> the child that runs it and has no work."""


@atexit.register
def _end_children() -> None:
    while _children:
        _children.popitem()[1].end()


def do_work(work: Callable[..., None]) -> None:
    """Call `work(*arguments)` for each `run_child` of the parent until there is none for `MOST_IDLE` seconds."""
    leave_signals_to_parent()
    end_with_parent(int(sys.argv[2]))
    with Connection(int(sys.argv[1])) as connection:
        while connection.poll(MOST_IDLE):
            try:
                request = connection.recv_bytes()
            except EOFError:
                return
            work(*json.loads(request))
            gc.collect()
            connection.send_bytes(_DONE)


def leave_signals_to_parent() -> None:
    """Pass over what a terminal (Ctrl-C, its end) or a cluster (SLURM's warning) sends to all processes of a command.

    A program that this process starts can still be ended with SIGTERM, as simulators with a server of their own do.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # where it were ignored, programs would ignore it, too
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def exit_words(code: int) -> str:
    """Return how a process ended, "was killed by SIGKILL (is the machine out of memory?)"; `code` of `subprocess`."""
    if code >= 0:
        return f"ended with exit code {code}"
    hint = " (is the machine out of memory?)" if -code == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{hint}"


def end_with_parent(parent: int) -> None:
    """End this process soon after its parent, the process `parent`, however that ends."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_CHECK)
        os._exit(1)

    threading.Thread(target=watch, name="orphan-check", daemon=True).start()
