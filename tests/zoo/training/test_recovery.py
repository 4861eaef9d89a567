"""`--resume auto`: one command that begins a run, and goes on with it however often its launcher starts it again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import zoo.train
from tests.zoo.launching import TINY, TOY, finish, only_run, same_tensors, train
from tests.zoo.training.test_rank_failures import ranks_of, until_saved
from vla_gym.errors import BadValue

COMMAND = (
    *(*TOY, "--algo", "ppo", "--seed", "1", "--eval-episodes", "0", "--save-freq", "200", "--resume", "auto"),
    *("-params", "num_envs:8", "n_steps:8", "batch_size:16", "n_epochs:1", TINY),
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
    asked = [*COMMAND, "-n", "1500", "-f"]
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    killed = subprocess.Popen(
        [*launcher, "--max-restarts", "1", "-m", "zoo.train", *asked, str(tmp_path / "killed")],
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    until_saved(killed, tmp_path / "killed")
    os.kill(ranks_of(killed)[1], signal.SIGKILL)
    finish(killed)
    train(2, [*asked, str(tmp_path / "whole")])
    runs = [only_run(tmp_path / name) for name in ("killed", "whole")]
    assert [(one / "command.txt").read_text().count("\n") for one in runs] == [2, 1]
    last = [max((one / "checkpoints").iterdir(), key=lambda step: int(step.name[5:])) for one in runs]
    assert last[0].name == last[1].name
    for file in ("model.safetensors", "optimizer.safetensors"):
        same_tensors(*last, file, 1e-9)
