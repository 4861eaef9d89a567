"""A child that does one piece of work after another, and what becomes of it without a parent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vla_gym.system import child as children
from vla_gym.system.child import limit_memory, run_child

NOTES = """
import os, signal, sys, time
from pathlib import Path
from vla_gym.system import child

child.MOST_IDLE = float(os.environ["MOST_IDLE"])
child.ORPHAN_CHECK = 0.05

def work(note, text):
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if text == "nothing":
        raise ValueError("there is nothing to note")
    if text == "too much":
        os.kill(os.getpid(), signal.SIGKILL)
    with open(note, "a") as stream:
        stream.write(f"{text} {os.getpid()}\\n")
    if text == "for ever":
        time.sleep(60)

child.do_work(work)
"""
PARENT = "import sys; from vla_gym.system.child import run_child; run_child('noting', 'notes', sys.argv[1], 'for ever')"


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], int]]:
    """Have a child write down a text; returns the child's process."""
    (tmp_path / "notes.py").write_text(NOTES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])]))
    monkeypatch.setenv("MOST_IDLE", "60")
    monkeypatch.setattr(children, "_children", {})

    def write(text: str) -> int:
        run_child("noting", "notes", str(tmp_path / "note"), text)
        written, _, process = (tmp_path / "note").read_text().splitlines()[-1].rpartition(" ")
        assert written == text
        return int(process)

    yield write
    children._end_children()


def test_one_child_does_one_piece_of_work_after_another(
    note: Callable[[str], int], alive: Callable[[int], bool]
) -> None:
    first = note("one")
    assert note("two") == first
    children._end_children()
    assert not alive(first)


def test_a_child_that_fails_is_quoted_and_another_does_the_next_work(
    note: Callable[[str], int], alive: Callable[[int], bool]
) -> None:
    before = note("one")
    with pytest.raises(RuntimeError, match=r"noting failed: .*ValueError: there is nothing to note"):
        note("nothing")
    assert not alive(before)
    with pytest.raises(RuntimeError, match=r"noting failed: .*killed by SIGKILL .*memory"):
        note("too much")
    note("two")
    with pytest.raises(RuntimeError, match=r"trying failed: .*No module named no_such"):
        run_child("trying", "no_such")


def test_a_child_without_work_ends_and_the_next_work_starts_another(
    note: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOST_IDLE", "0.1")
    before = note("one")
    until(lambda: children._children["notes"]._process.poll() == 0)
    assert note("two") != before


def test_a_child_ends_soon_after_a_killed_parent(
    note: Callable[[str], int], alive: Callable[[int], bool], tmp_path: Path
) -> None:
    written = tmp_path / "note"
    with subprocess.Popen([sys.executable, "-c", PARENT, str(written)]) as parent:
        until(lambda: written.exists() and written.read_text().endswith("\n"))
        parent.kill()
    until(lambda: not alive(int(written.read_text().split()[-1])))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
def test_a_child_gets_no_more_memory_than_it_may() -> None:
    command = [sys.executable, "-c", "input(); bytearray(2**28)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        limit_memory(process.pid, 2**27)
        _, said = process.communicate("go\n")
    assert "MemoryError" in said
