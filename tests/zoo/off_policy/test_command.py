"""`vla-zoo train --algo qc`, `recap` and `dsrl`: the run folder, going on, and the commands that open its policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.zoo.launching import TOY, only_run, train
from zoo import evaluate
from zoo.cli.main import guarded
from zoo.train import run

FEW = {
    "qc": ("updates_per_decision:0.1", "learning_starts:20"),
    "recap": ("updates:3", "value_updates:2", "label:value", "indicator:prompt"),
    "dsrl": (
        "updates_per_decision:0.1",
        "learning_starts:20",
        "batch_size:16",
        "policy_kwargs:{backbone_kwargs: {size: tiny}}",
    ),
}


def flags(algo: str, folder: Path, steps: int) -> list[str]:
    family = "nano-flow" if algo == "dsrl" else "nano"
    shared = ["--algo", algo, *TOY, "--policy", family, "--seed", "1", "--eval-episodes", "3", "--no-eval-video"]
    return [*shared, "-n", str(steps), "-f", str(folder), "-params", "num_envs:8", "n_steps:4", *FEW[algo]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "algo", ["qc", *(pytest.param(algo, marks=pytest.mark.thorough) for algo in ("recap", "dsrl"))]
)
def test_a_run_goes_on_and_its_policy_is_evaluated_as_it_was_steered(
    algo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(flags(algo, tmp_path, 200)) == 0
    folder = only_run(tmp_path)
    assert (folder / "replay/rank_0/action.bin").is_file()
    checkpoint, *_ = (folder / "checkpoints").iterdir()
    assert guarded(run, ["-i", str(checkpoint), "-n", "500"]) == 2
    assert f"a run of {algo} goes on in its own folder" in capsys.readouterr().err
    assert run(["-i", str(folder), "-n", "400", "--device", "cpu"]) == 0
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    assert steps[-1] >= 400
    assert (folder / "report.html").is_file()
    found = tmp_path / "found.json"
    assert evaluate.run(["-i", str(folder), "--eval-episodes", "3", "--device", "cpu", "-o", str(found)]) == 0
    steered = {"qc": "best of 16", "recap": "'Advantage: positive'", "dsrl": "flow noise chosen in [-1, 1]"}
    assert steered[algo] in json.loads(found.read_text())["protocol"]["evaluation"]["actions"]


@pytest.mark.thorough
@pytest.mark.parametrize("algo", ["qc", "recap"])
def test_two_processes_collect_and_learn_the_same_policy(algo: str, tmp_path: Path) -> None:
    train(2, flags(algo, tmp_path, 400))
    folder = only_run(tmp_path)
    assert all((folder / f"replay/rank_{rank}/action.bin").is_file() for rank in (0, 1))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert any("train/actor/imitation_loss" in row for row in rows)
    train(2, ["-i", str(folder), "-n", "500", "--device", "cpu"])
