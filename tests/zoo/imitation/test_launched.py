"""`zoo.sft` on one process and on several: the same losses, the same weights, the same evaluation."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.zoo.imitation.test_sft import during_update, metrics, send
from tests.zoo.launching import TOY, only_run, same_tensors, train
from zoo import sft
from zoo.cli.main import guarded
from zoo.distributed.learner import Learner

pytestmark = pytest.mark.processes

pytest.importorskip("pyarrow")
SEEDED = (*TOY, "--batch-size", "8", "--seed", "0", "--augment")
SIZE = ("-n", "4", "--eval-freq", "2", "--eval-episodes", "5", "--micro-batch-size", "3")


def assert_close(run: Path, expected: Path) -> None:
    for row, expected_row in zip(metrics(run), metrics(expected), strict=True):
        assert row == pytest.approx(expected_row, rel=1e-5, abs=1e-5)


def same_runs(folder: Path, asked: list[str], processes: int, weights: str, config: str = "cpu.yaml") -> str:
    """Assert that one process and several make the same run; what the several said."""
    assert sft.run([*asked, "-f", str(folder / "alone")]) == 0
    said = train(processes, [*asked, "-f", str(folder / "several")], config=config, run=sft.run)
    alone, shared = only_run(folder / "alone"), only_run(folder / "several")
    # Four updates, two evaluations.
    assert len(metrics(alone)) == 6
    assert_close(alone, shared)
    same_tensors(alone / "best", shared / "best", weights, 1e-5)
    assert _outcomes(alone) == _outcomes(shared)
    return said


def _outcomes(run: Path) -> list[tuple[Any, ...]]:
    record = json.loads((run / "evaluation.json").read_text())
    keys = ("task_id", "trial_id", "success_once", "length", "start_state")
    return [tuple(episode[key] for key in keys) for episode in record["episodes"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "config"),
    [
        (2, "cpu.yaml"),
        pytest.param(4, "cpu.yaml", marks=pytest.mark.thorough),
        pytest.param(2, "one_node_fsdp2.yaml", marks=pytest.mark.thorough),
    ],
)
def test_the_number_of_processes_changes_nothing(processes: int, config: str, demos: Path, tmp_path: Path) -> None:
    small = ("--policy", "nano-flow", "-params", "policy_kwargs:{backbone_kwargs: {size: tiny}}")
    asked = [*SEEDED, *SIZE, "--dataset", str(demos), *small]
    said = same_runs(tmp_path, asked, processes, "model.safetensors", config)
    assert said.count("4 of 4") == said.count("next:") == 1


def stopped(asked: Sequence[str]) -> int:
    """`zoo.sft` whose last rank gets a SIGTERM in its second update."""
    if os.environ["RANK"] == "1":
        Learner.apply = during_update(2, send(signal.SIGTERM))  # type: ignore[method-assign]
    return sft.run(asked)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("config", ["cpu.yaml", "one_node_fsdp2.yaml"])
def test_what_two_processes_leave_goes_on_on_one(config: str, demos: Path, tmp_path: Path) -> None:
    tiny = ("-params", "policy_kwargs:{backbone_kwargs: {size: tiny}}")
    asked = [*SEEDED, *SIZE, "--dataset", str(demos), *tiny]
    assert sft.run([*asked, "-f", str(tmp_path / "whole")]) == 0
    said = train(2, [*asked, "-f", str(tmp_path / "stopped")], config=config, run=stopped)
    assert said.count("stopped and saved") == 1
    whole, run = only_run(tmp_path / "whole"), only_run(tmp_path / "stopped")
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step_2"]
    assert sft.run(["-i", str(run), "--num-threads", "1"]) == 0
    assert_close(run, whole)
    same_tensors(run / "best", whole / "best", "model.safetensors", 1e-5)
    assert _outcomes(run) == _outcomes(whole)


def test_frames_that_cannot_be_dealt_evenly_are_refused_before_anything_starts(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert guarded(sft.run, [*SEEDED, "--dataset", str(demos), "-f", str(tmp_path / "logs")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--batch-size 8 cannot be dealt evenly to 3 ranks" in line
    assert not list(tmp_path.iterdir())
