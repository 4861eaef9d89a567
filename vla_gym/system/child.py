"""Child processes: modules found as here, an end with their parent."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

ORPHAN_CHECK = 1.0
"""Seconds between two checks that the parent still lives (a busy child does not notice a closed connection)."""


def python_path() -> str:
    """PYTHONPATH with which a child finds the same modules as this process."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


def run_child(purpose: str, module: str, *arguments: str, lock: int) -> None:
    """Run `python -m module *arguments PARENT_PID` to its end; PARENT_PID is the id of this process.

    Args:
        purpose: what the child does, for the error message.
        module: what it runs.
        arguments: the module's own.
        lock: descriptor of a lock file, inherited: the lock is held until both processes are done with it.

    Raises `RuntimeError` with the child's last lines if it fails.
    """
    result = subprocess.run(  # noqa: S603  our own modules
        [sys.executable, "-m", module, *arguments, str(os.getpid())],
        capture_output=True,
        text=True,
        check=False,
        pass_fds=(lock,),
    )
    if result.returncode:
        tail = " | ".join(result.stderr.strip().splitlines()[-3:])
        raise RuntimeError(f"{purpose} failed: {tail}")


def end_with_parent(parent: int) -> None:
    """End this process soon after its parent, the process `parent`, however that ends."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_CHECK)
        os._exit(1)

    threading.Thread(target=watch, name="orphan-check", daemon=True).start()
