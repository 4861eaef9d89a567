"""When a fine-tuning run is evaluated, which of its policies it keeps, and what it advises at its end."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.zoo.evaluation.test_evaluator import episode
from zoo import sft
from zoo.demonstrations.lerobot_video import Video
from zoo.runs.evaluations import find_evaluation
from zoo.runs.folder import RunFolder
from zoo.training.sft import SFT

pytestmark = pytest.mark.processes

pytest.importorskip("pyarrow")
RUN = Path("logs/sft/Toy-Reach_1")


TINY = ("-params", "policy_kwargs:{backbone_kwargs: {size: tiny}}")


def fine_tune(demos: Path, *flags: str) -> None:
    asked = ["--env", "Toy-Reach", "--dataset", str(demos), "--device", "cpu", "--seed", "0", *TINY]
    assert sft.run([*asked, "--batch-size", "4", *flags]) == 0


def rows(key: str) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl that have the key."""
    lines = [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if key in line]


def test_the_later_of_the_best_is_kept(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    results = iter([(False, False), (True, False), (False, True), (False, False)])
    monkeypatch.setattr(
        "zoo.training.evaluation.evaluate",
        lambda policy, envs, cells, **how: [episode(0, k, done) for k, done in enumerate(next(results))],
    )
    fine_tune(demos, "-n", "7", "--eval-freq", "2", "--eval-episodes", "2")
    # After 2, 4 and 6 updates and at the end; a half, twice, is the best.
    with np.load(RUN / "evaluations.npz") as file:
        assert file["timesteps"].tolist() == [2, 4, 6, 7]
        assert file["successes"].tolist() == [[False, False], [True, False], [False, True], [False, False]]
    said = [line for line in capsys.readouterr().out.splitlines() if "evaluated" in line]
    assert [line.endswith("kept as best/") for line in said] == [True, True, True, False]
    assert "success 50.0% [9.5%, 90.5%], 1 of 2, kept" in said[2]
    assert json.loads((RUN / "best" / "score.json").read_text())["success"] == 0.5
    record = json.loads((RUN / "evaluation.json").read_text())
    assert (record["updates"], record["success"]["successes"]) == (6, 1)
    # Which weights it is of: a card may quote it.
    score = json.loads((RUN / "best" / "score.json").read_text())
    assert score["num_timesteps"] == 6
    assert find_evaluation(RunFolder(RUN), RUN / "best", score["num_timesteps"]) == record
    updates, looks = rows("train/loss"), rows("eval/success_once")
    assert [row["step"] for row in updates] == [1, 2, 3, 4, 5, 6, 7]
    assert [(row["step"], row["eval/success_once"]) for row in looks] == [(2, 0.0), (4, 0.5), (6, 0.5), (7, 0.0)]


def test_the_files_of_a_dataset_are_closed_before_the_first_update(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A video that was read in part keeps its ffmpeg, a table what was read of it last."""
    monkeypatch.chdir(tmp_path)
    opened: list[weakref.ref[Video]] = []

    class Noted(Video):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            opened.append(weakref.ref(self))

    own = SFT.learn

    def learn(*args: Any, **how: Any) -> SFT:
        assert opened
        assert not any(video() for video in opened)
        return own(*args, **how)

    monkeypatch.setattr("zoo.demonstrations.lerobot_video.Video", Noted)
    monkeypatch.setattr(SFT, "learn", learn)
    fine_tune(demos, "-n", "1", "--eval-episodes", "0", "--episodes", "1")
    assert len(rows("train/loss")) == 1
