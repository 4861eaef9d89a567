"""A child that does one piece of work after another, the lock it holds, and what becomes of both without a parent."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vla_gym.system import child as children
from vla_gym.system.child import limit_memory, run_child

BUSY = """
import os, signal, time
from pathlib import Path
from vla_gym.system import child

def work(note):
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    Path(note).write_text(str(os.getpid()))
    while not Path(note).with_name("go").exists():
        time.sleep(0.01)
    child.ORPHAN_CHECK = 0.01
    time.sleep(60)

child.ORPHAN_CHECK = 5.0
child.do_work(work)
"""
PARENT = """
import fcntl, signal, sys
from vla_gym.system.child import limit_memory, run_child
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a worker does
with open(sys.argv[1], "w") as stream:
    fcntl.flock(stream, fcntl.LOCK_EX)
    run_child("being busy", "busy", sys.argv[2], lock=stream.fileno())
"""
NOTES = """
import os, signal, sys
from vla_gym.system import child

child.MOST_IDLE = float(os.environ["MOST_IDLE"])

def work(note, text):
    print("noting", text)
    if text == "nothing":
        raise ValueError("there is nothing to note")
    if text == "too much":
        os.kill(os.getpid(), signal.SIGKILL)
    with open(note, "a") as stream:
        stream.write(f"{text} {os.getpid()}\\n")

child.do_work(work)
"""
STARTER = """
import os, signal, subprocess
from vla_gym.system.child import leave_signals_to_parent

leave_signals_to_parent()
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):
    os.kill(os.getpid(), number)
program = subprocess.Popen(["sleep", "60"])
program.terminate()
pid = os.fork()
if not pid:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)
print(program.wait(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
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
        (tmp_path / "go").touch()
        fcntl.flock(stream, fcntl.LOCK_EX)
    until(lambda: not alive(child))


def test_a_child_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    with (
        (tmp_path / "lock").open("w") as stream,
        pytest.raises(RuntimeError, match=r"trying failed: .*No module named no_such"),
    ):
        run_child("trying", "no_such", lock=stream.fileno())


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], tuple[str, int]]]:
    """Have a child write down a text; returns what it wrote and its process."""
    (tmp_path / "notes.py").write_text(NOTES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])]))
    monkeypatch.setenv("MOST_IDLE", "60")
    monkeypatch.setattr(children, "_children", {})

    def write(text: str) -> tuple[str, int]:
        with (tmp_path / "lock").open("w") as stream:
            run_child("noting", "notes", str(tmp_path / "note"), text, lock=stream.fileno())
        written, process = (tmp_path / "note").read_text().splitlines()[-1].split()
        return written, int(process)

    yield write
    children._end_children()


def test_one_child_does_one_piece_of_work_after_another(
    note: Callable[[str], tuple[str, int]], alive: Callable[[int], bool], tmp_path: Path
) -> None:
    first, second = note("one"), note("two")
    assert (first[0], second[0]) == ("one", "two")
    assert first[1] == second[1]
    with (tmp_path / "lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the child has let go of it
    children._end_children()
    assert not alive(first[1])


def test_a_child_that_fails_is_quoted_and_another_does_the_next_work(
    note: Callable[[str], tuple[str, int]], alive: Callable[[int], bool]
) -> None:
    _, before = note("one")
    with pytest.raises(RuntimeError, match=r"noting failed: .*ValueError: there is nothing to note"):
        note("nothing")
    assert not alive(before)
    assert note("two")[0] == "two"


def test_a_child_that_is_killed_is_said_to_be(
    note: Callable[[str], tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    with pytest.raises(RuntimeError, match=r"noting too much . it was killed by SIGKILL \(is the machine out of"):
        note("too much")


def test_a_child_without_work_ends_and_the_next_work_starts_another(
    note: Callable[[str], tuple[str, int]], alive: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOST_IDLE", "0.1")
    _, before = note("one")
    until(lambda: children._children["notes"]._process.poll() == 0)
    assert not alive(before)
    assert note("two")[0] == "two"


def test_a_fork_has_a_child_of_its_own(note: Callable[[str], tuple[str, int]], tmp_path: Path) -> None:
    """With the parent's it would take the answer to the parent's work for the answer to its own."""
    _, before = note("one")
    pid = os.fork()
    if not pid:
        try:
            _, own = note("two")
            children._end_children()
            os._exit(0 if own != before else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert note("three")[1] == before


def test_what_a_child_starts_can_be_terminated() -> None:
    """A simulator's server, which its `close` ends and waits for."""
    ended = subprocess.run([sys.executable, "-c", STARTER], capture_output=True, text=True, timeout=20, check=False)
    assert ended.stdout == "-15 -15\n", ended.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
def test_a_child_gets_no_more_memory_than_it_may() -> None:
    command = [sys.executable, "-c", "input(); bytearray(2**28)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        limit_memory(process.pid, 2**27)
        _, said = process.communicate("go\n")
    assert "MemoryError" in said
