from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from vla_gym.errors import BadValue
from zoo.cli.main import guarded
from zoo.report import run
from zoo.runs.curves import Episodes
from zoo.runs.folder import RunFolder
from zoo.runs.monitor import EvaluationFile
from zoo.runs.report_page import run_page, success_per_task
from zoo.train import run as train


def test_success_per_task_counts_by_task_and_time() -> None:
    episodes = Episodes(
        steps=np.array([10, 40, 60, 100]),
        seconds=np.zeros(4),
        success=np.array([1.0, 0.0, 1.0, 1.0]),
        reward=np.zeros(4),
        length=np.zeros(4),
        task_id=np.array([0, 0, 0, 1]),
    )
    share = success_per_task(episodes, num_tasks=3, bins=2)
    assert share[0].tolist() == [0.5, 1.0]
    assert np.isnan(share[1, 0])
    assert share[1, 1] == 1.0
    assert np.isnan(share[2]).all()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logs = tmp_path_factory.mktemp("logs")
    flags = ["--algo", "ppo", "--env", "Toy-Reach", "-n", "300", "--eval-episodes", "3", "-f", str(logs)]
    assert train([*flags, "-params", "n_steps:8", "ent_coef:0.123", "--num-envs", "4"]) == 0
    return logs / "ppo" / "Toy-Reach_1"


@pytest.mark.processes
def test_training_leaves_a_page_that_needs_no_network(finished: Path) -> None:
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert "PPO on Toy-Reach with nano" in page
    assert "data:video/mp4;base64," in page
    assert "of 3 episodes" in page
    assert page.count("<svg") == 3
    assert all(text in page for text in ("reach_red", "KL of an update", "training, mean of 50"))
    assert re.search(r"ent_coef</td><td>0\.123 <span class=\"muted\">\(recipe: ", page)
    assert "http://" not in page
    assert "https://" not in page


def test_the_command_writes_the_page_anew(finished: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run(["-i", str(finished), "-o", str(page)]) == 0
    assert page.read_text(encoding="utf-8") == (finished / "report.html").read_text(encoding="utf-8")


def test_a_number_that_was_nan_leaves_a_gap_not_an_error(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "logs" / "ppo" / "Toy-Reach_1")
    line = '{"step": 99, "train/actor/entropy": null}'
    (copy / "metrics.jsonl").write_text(line + "\n", encoding="utf-8")
    page = run_page(RunFolder(copy))
    assert "entropy (nats)" not in page


def test_an_evaluation_hides_no_update_of_the_same_step(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "logs" / "ppo" / "Toy-Reach_1")
    lines = '{"step": 99, "train/actor/entropy": 1.5}\n{"step": 99, "eval/success_once": 0.5}\n'
    (copy / "metrics.jsonl").write_text(lines, encoding="utf-8")
    assert "entropy (nats)" in run_page(RunFolder(copy))


@pytest.mark.parametrize("ended_before", [False, True])
def test_a_run_that_has_not_ended_shows_its_newest_evaluation(
    finished: Path, tmp_path: Path, ended_before: bool
) -> None:
    copy = shutil.copytree(finished, tmp_path / "logs" / "ppo" / "Toy-Reach_1")
    EvaluationFile(copy, keep_until=10**6).add(5000, [0.0] * 3, [16] * 3, [True, True, False])
    if not ended_before:
        (copy / "evaluation.json").unlink()
    page = run_page(RunFolder(copy))
    assert '<span class="big">66.7%</span>' in page
    assert "2 of 3 episodes<br>" in page
    assert "evaluated after 5000 simulator steps" in page
    assert "not evaluated" not in page
    assert "Last evaluation" not in page


@pytest.mark.parametrize(
    "name", ["monitor.csv", "evaluations.npz", "metrics.jsonl", "evaluation.json", "protocol.json"]
)
def test_a_damaged_file_is_one_line(
    name: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(finished, tmp_path / "logs" / "ppo" / "Toy-Reach_1")
    (copy / name).write_bytes(b"garbage\n" * 9)
    assert guarded(run, ["-i", str(copy)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(copy / name) in line


def test_bad_paths_are_one_line(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(run, ["-i", str(finished), "-o", str(tmp_path / "none" / "page.html")]) == 2
    assert "cannot write" in capsys.readouterr().err
    with pytest.raises(BadValue, match="is no run folder"):
        run(["-i", str(tmp_path)])
