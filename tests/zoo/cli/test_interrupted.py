from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from zoo.cli.interrupted import say_interrupted


@pytest.mark.processes
def test_ctrl_c_among_the_imports_is_one_line(tmp_path: Path) -> None:
    # the first third-party module that a command imports is interrupted
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt\n")
    done = subprocess.run(
        [sys.executable, "-m", "zoo.train", "--help"],
        env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("argv", "is_ours"),
    [
        (["python", "-u", "-m", "zoo.train", "-i", "x"], True),
        (["python", "-m", "zoo"], True),
        (["/usr/bin/python3", "/venv/bin/vla-zoo", "train"], True),
        (["python", "-m", "pytest", "-m", "zoo"], False),
        (["python", "mine.py", "-m", "zoo.train"], False),
        (["python", "-m"], False),
        (["python"], False),
    ],
)
def test_other_programs_keep_their_hook(argv: list[str], is_ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    say_interrupted(argv)
    assert (sys.excepthook is not sys.__excepthook__) == is_ours
