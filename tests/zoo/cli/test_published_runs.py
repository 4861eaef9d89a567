"""A published protocol played for real, on an environment without a simulator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from zoo import evaluate
from zoo.config import published as rows
from zoo.config.published import Figure, PublishedRow
from zoo.evaluation.protocol import EvaluationProtocol

ROW = PublishedRow(
    name="toy",
    model="a toy",
    source="nowhere",
    hardware="one core",
    protocol=EvaluationProtocol(sample=True, temperature=1.6, rounds=2),
    horizon=(12,),
    settle_steps=0,
    grid="3 tasks x 50 start states",
    figures=(
        Figure(label="all", percent=50.0, of=("Toy-Reach",)),
        Figure(label="average", percent=50.0, average="plain"),
    ),
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PublishedRow:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rows, "published_rows", lambda: {"toy": replace(ROW)})
    return ROW


@pytest.mark.usefixtures("toy")
def test_the_protocol_is_played_and_compared(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert evaluate.run(["--published", "toy", "--policy", "nano", "--eval-episodes", "3", "--num-envs", "2"]) == 0
    out = capsys.readouterr().out
    assert "episodes     2 x 3 start states = 6 episodes on Toy-Reach (3 of its 150 start states)" in out
    assert "actions sampled at temperature 1.6" in out
    assert "/6  all      p = " in out
    record = json.loads((tmp_path / "results_toy.json").read_text())
    assert record["published"]["figures"][0]["episodes"] == 6
    assert record["results"]["Toy-Reach"]["rounds"] == 2
