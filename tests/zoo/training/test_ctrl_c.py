"""Ctrl-C in a terminal, a kill, and a terminal that goes away, while a training run has simulators elsewhere."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.zoo.launching import TINY

pytestmark = pytest.mark.processes

ARGV = [sys.executable, "-u", "-m", "zoo.train", "--env", "Toy-Reach", "--num-threads", "1", "--device", "cpu"]
PARAMS = ["num_envs:4", "num_workers:2", "eval_episodes:0", "n_steps:4", "batch_size:16", "n_epochs:1", TINY]


def members(session: int) -> list[int]:
    """Running processes of a session (zombies wait for whoever adopted them)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left(how: signal.Signals, tmp_path: Path) -> None:
    run = subprocess.Popen(
        [*ARGV, "-n", "1000000", "-f", str(tmp_path), "-params", *PARAMS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert run.stdout is not None
    for line in run.stdout:
        if "success" in line:  # the table's heading: an update has been made
            break
    assert len(members(run.pid)) == 3  # itself and two workers
    if how is signal.SIGINT:
        os.killpg(run.pid, how)
    else:
        run.kill()
    run.communicate(timeout=20)
    deadline = time.monotonic() + 10.0
    while members(run.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert members(run.pid) == []
    assert run.returncode == (130 if how is signal.SIGINT else -signal.SIGKILL)


def test_a_terminal_that_goes_away_leaves_a_checkpoint(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [*ARGV, "-n", "1000000", "-f", str(tmp_path), "-params", *PARAMS])  # noqa: S606
    said = b""
    while b"success" not in said:
        said += os.read(terminal, 4096)
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 141)  # it had nothing to say any more, or noticed
    assert len(list((tmp_path / "ppo" / "Toy-Reach_1" / "checkpoints").iterdir())) == 1
