"""A rank that dies takes the run down and is named; a rank that is asked to stop takes it down in good order."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.zoo.launching import TINY, TOY, only_run, start, train, updates
from zoo.runs.folder import RunFolder

pytestmark = pytest.mark.slow

ENDLESS = (*TOY, "--seed", "1", "-n", "10000000", "--eval-episodes", "0", "--save-freq", "200")
PARAMS = ("-params", "num_envs:8", "n_steps:8", "batch_size:16", "n_epochs:1", TINY)


def training(folder: Path, *params: str) -> subprocess.Popen[str]:
    """A run of two ranks that has written a checkpoint."""
    run = start(2, [*ENDLESS, "-f", str(folder), *PARAMS, *params])
    until_saved(run, folder)
    return run


def until_saved(run: subprocess.Popen[str], folder: Path) -> None:
    """Wait for its first checkpoint."""
    deadline = time.monotonic() + 120
    while not list(folder.glob("*/*/checkpoints/step_*/training_state.json")):
        assert run.poll() is None, run.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ranks_of(run: subprocess.Popen[str]) -> dict[int, int]:
    """Rank -> process id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _parent(entry) == run.pid:
            rank = [word for word in (entry / "environ").read_bytes().split(b"\0") if word.startswith(b"RANK=")]
            if rank:
                found[int(rank[0].removeprefix(b"RANK="))] = int(entry.name)
    return found


def children_of(pid: int) -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _parent(entry) == pid]


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def end_of(run: subprocess.Popen[str], seconds: float) -> tuple[str, float]:
    """Its output, and how long it still took."""
    began = time.monotonic()
    output, _ = run.communicate(timeout=seconds)
    return output, time.monotonic() - began


def last_line(output: str) -> str:
    """The last line that says something (the launcher's summary ends with a rule)."""
    return [line for line in output.splitlines() if line.strip("= ")][-1]


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.thorough), 1])
def test_a_killed_rank_takes_the_run_down_and_is_named_last(victim: int, tmp_path: Path) -> None:
    run = training(tmp_path)
    os.kill(ranks_of(run)[victim], signal.SIGKILL)
    output, seconds = end_of(run, 60.0)
    assert run.returncode not in (0, None)
    assert seconds < 60
    assert "Signal 9 (SIGKILL)" in last_line(output)
    assert f"rank      : {victim}" in output.partition("Root Cause")[2]
    saved = max(RunFolder(only_run(tmp_path)).saved_steps())
    train(1, ["-i", str(only_run(tmp_path)), "-n", str(saved + 300)])
    assert updates(only_run(tmp_path))[-1]["step"] >= saved + 300


@pytest.mark.thorough
def test_a_rank_that_fails_has_the_last_word(tmp_path: Path) -> None:
    run = training(tmp_path, "num_workers:1", "on_worker_error:raise")
    (worker,) = children_of(ranks_of(run)[1])
    os.kill(worker, signal.SIGKILL)
    output, seconds = end_of(run, 60.0)
    assert run.returncode not in (0, None)
    assert seconds < 60
    assert "error: rank 1: worker 0" in output
    assert "was killed by SIGKILL" in last_line(output)


@pytest.mark.parametrize(
    ("victim", "how"), [(1, signal.SIGTERM), pytest.param(0, signal.SIGUSR1, marks=pytest.mark.thorough)]
)
def test_a_signal_to_one_rank_saves_and_ends_all_of_them_well(victim: int, how: signal.Signals, tmp_path: Path) -> None:
    run = training(tmp_path)
    os.kill(ranks_of(run)[victim], how)
    output, _ = end_of(run, 60.0)
    assert run.returncode == 0, output
    assert output.count("stopped and saved") == 1
    train(1, ["-i", str(only_run(tmp_path)), "-n", str(updates(only_run(tmp_path))[-1]["step"] + 300)])


@pytest.mark.thorough
def test_ctrl_c_saves_and_ends_all_of_them(tmp_path: Path) -> None:
    run = training(tmp_path)
    os.killpg(run.pid, signal.SIGINT)
    output, _ = end_of(run, 60.0)
    assert run.returncode not in (0, None)
    assert output.count("stopped and saved") == 1
