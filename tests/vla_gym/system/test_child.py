"""A child that holds a lock of its parent's, and what becomes of both when the parent is killed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vla_gym.system.child import run_child

BUSY = """
import os, signal, sys, time
from pathlib import Path
from vla_gym.system.child import end_with_parent
assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
Path(sys.argv[1]).write_text(str(os.getpid()))
while not Path(sys.argv[1]).with_name("go").exists():
    time.sleep(0.01)
end_with_parent(int(sys.argv[2]))
time.sleep(60)
"""
PARENT = """
import fcntl, signal, sys
from vla_gym.system.child import run_child
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a worker does
with open(sys.argv[1], "w") as stream:
    fcntl.flock(stream, fcntl.LOCK_EX)
    run_child("being busy", "busy", sys.argv[2], lock=stream.fileno())
"""


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_child_and_its_lock_outlive_a_killed_parent_by_a_moment(tmp_path: Path, alive: Callable[[int], bool]) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])
    lock, note = tmp_path / "lock", tmp_path / "pid"
    command = [sys.executable, "-c", PARENT, str(lock), str(note)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}) as parent:
        until(lambda: note.exists() and note.read_text())
        parent.kill()
    child = int(note.read_text())
    with lock.open() as stream:
        assert alive(child)
        with pytest.raises(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (tmp_path / "go").touch()  # the parent had gone before the child began to look
        fcntl.flock(stream, fcntl.LOCK_EX)
    until(lambda: not alive(child))


def test_a_child_that_fails_is_quoted(tmp_path: Path) -> None:
    with (
        (tmp_path / "lock").open("w") as stream,
        pytest.raises(RuntimeError, match=r"trying failed: .*No module named no_such"),
    ):
        run_child("trying", "no_such", lock=stream.fileno())
