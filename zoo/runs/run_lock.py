"""One process at a time trains in a run folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from vla_gym.errors import BadValue
from zoo.runs.folder import COMMAND_FILE, RunFolder


@contextmanager
def held(run: RunFolder, instead: str = "") -> Iterator[None]:
    """Inside, the run is this process's; raises `BadValue`, `instead` at its end, where it is another's.

    The lock is the system's, on `command.txt`, which stays: it ends with the process and is not copied with the run.
    """
    # For appending: network file systems lock only what is open for writing.
    with (run.path / COMMAND_FILE).open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadValue(
                f"'{run.path}' is being trained by another process; wait until it ends{instead}"
            ) from error
        except OSError:
            pass  # a file system without locks
        yield
