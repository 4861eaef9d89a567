"""The folder of a dataset that is being collected: one process at a time, and nothing of one that was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vla_gym.errors import BadValue
from zoo.files import missing_folders, recover_folders, remove_empty

_PARTS = ("meta", "data", "videos")
"""Folders of a LeRobotDataset."""


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Context manager in which this process alone writes the dataset; `BadValue` where another does.

    What a process that was killed had half written is removed. The lock is the system's, on the folder, and ends with
    the process; a folder that stays empty is removed.
    """
    made = missing_folders(root)
    root.mkdir(parents=True, exist_ok=True)
    handle = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadValue(f"another process collects into '{root}'; wait until it ends, or name another -o") from error
        except OSError:
            pass  # a file system without locks
        for name in _PARTS:
            for folder in (root / name, *(path for path in (root / name).rglob("*") if path.is_dir())):
                recover_folders(folder)
        yield
    finally:
        os.close(handle)
        remove_empty(made)


def remove_parts(root: Path) -> None:
    """Remove a dataset's files, of which none is complete."""
    for name in _PARTS:
        shutil.rmtree(root / name, ignore_errors=True)


def is_unused(root: Path) -> bool:
    """Whether a folder is missing or has no file: at most a dataset's folders, which a process that is killed early
    leaves empty."""
    entries = list(root.iterdir()) if root.is_dir() else []
    ours = all(entry.name in _PARTS and entry.is_dir() for entry in entries)
    return ours and all(path.is_dir() for entry in entries for path in entry.rglob("*"))
