"""`--resume auto`: one command that begins a run, and goes on with it however often its launcher starts it again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import zoo.train
from tests.zoo.launching import TOY, only_run, same_tensors
from vla_gym.errors import BadValue

COMMAND = (
    *(*TOY, "--algo", "ppo", "--seed", "1", "--eval-episodes", "0", "--save-freq", "200", "--resume", "auto"),
    *("-params", "num_envs:8", "n_steps:8", "batch_size:16", "n_epochs:1"),
)


def run(folder: Path, *more: str) -> int:
    return zoo.train.run([*COMMAND, "-f", str(folder), *more])


@pytest.mark.slow
def test_the_newest_run_goes_on_as_it_was_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "-n", "300") == 0
    assert run(tmp_path, "-n", "600") == 0
    folder = only_run(tmp_path)
    assert (folder / "command.txt").read_text().count("\n") == 2
    capsys.readouterr()
    assert run(tmp_path, "-n", "600") == 0
    assert "is complete" in capsys.readouterr().out
    # Flags that do not begin a run need not be repeated; others must be as they were.
    assert zoo.train.run(["--env", "Toy-Reach", "--resume", "auto", "-f", str(tmp_path), "-n", "300"]) == 0
    with pytest.raises(BadValue, match=r"seed 1, this command asks for 2"):
        run(tmp_path, "--seed", "2")
    # A run that had no time to save is begun anew, in its own folder.
    newer = folder.with_name("Toy-Reach_2")
    newer.mkdir()
    (newer / "config.yml").write_text((folder / "config.yml").read_text())
    assert run(tmp_path, "-n", "300") == 0
    assert (folder.with_name("Toy-Reach_3") / "checkpoints").is_dir()


@pytest.mark.slow
def test_a_launcher_that_restarts_ends_with_the_uninterrupted_weights(tmp_path: Path) -> None:
    def start(folder: Path) -> subprocess.Popen[str]:
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            *("--max-restarts", "1", "-m", "zoo.train", *COMMAND, "-n", "1500", "-f", str(folder)),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, text=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    killed, deadline = start(tmp_path / "killed"), time.monotonic() + 120
    while not list(tmp_path.glob("killed/*/*/checkpoints/step_*/training_state.json")):
        assert killed.poll() is None, killed.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(rank_of(killed.pid, 1), signal.SIGKILL)
    output, _ = killed.communicate(timeout=240)
    assert killed.returncode == 0, output
    whole = start(tmp_path / "whole")
    assert whole.communicate(timeout=240)[0] is not None
    assert whole.returncode == 0
    runs = [only_run(tmp_path / name) for name in ("killed", "whole")]
    assert [(one / "command.txt").read_text().count("\n") for one in runs] == [2, 1]
    last = [max((one / "checkpoints").iterdir(), key=lambda step: int(step.name[5:])) for one in runs]
    assert last[0].name == last[1].name
    for file in ("model.safetensors", "optimizer.safetensors"):
        same_tensors(*last, file, 1e-9)


def rank_of(launcher: int, rank: int) -> int:
    """Process id of a rank that `launcher` has started."""
    for entry in Path("/proc").glob("[0-9]*"):
        parent = re.search(r"^PPid:\t(\d+)$", (entry / "status").read_text(), re.MULTILINE)
        if parent and int(parent[1]) == launcher and f"\0RANK={rank}\0" in f"\0{(entry / 'environ').read_text()}":
            return int(entry.name)
    raise AssertionError(f"no rank {rank}")
