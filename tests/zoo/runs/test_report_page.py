from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import rc_context

from tests.zoo.launching import TINY
from vla_gym.errors import BadValue
from zoo.cli.main import guarded
from zoo.evaluation.statistics import Rate
from zoo.report import run
from zoo.runs.folder import RunFolder
from zoo.runs.monitor import Episodes, EvaluationFile, EvaluationPoint
from zoo.runs.report_page import (
    CHARTS,
    Chart,
    metric_charts,
    report_of,
    run_page,
    success_chart,
    success_per_task,
    training_curve,
)
from zoo.train import run as train


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logs = tmp_path_factory.mktemp("logs")
    flags = ["--algo", "ppo", "--env", "Toy-Reach", "-n", "300", "--eval-episodes", "3", "-f", str(logs)]
    assert train([*flags, "-params", "n_steps:8", "ent_coef:0.123", TINY, "--num-envs", "4"]) == 0
    return logs / "ppo" / "Toy-Reach_1"


@pytest.mark.processes
def test_training_leaves_a_page_that_needs_no_network(finished: Path) -> None:
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert "PPO on Toy-Reach with nano" in page
    assert "data:video/mp4;base64," in page
    assert "of 3 episodes" in page
    # Success, success per task, and each of eight numbers of the updates.
    assert page.count("<svg") == 10
    assert all(text in page for text in ("reach_red", "KL of an update", "normal: below 0.3", "GiB"))
    assert 'name="viewport"' in page
    assert str(finished.parent) not in page.partition("How it was made")[0]
    assert re.search(r"Trained for \d+:\d\d:\d\d on \d+ cores of .* GiB.*; 1 process</p>", page)
    assert re.search(r"ent_coef</td><td>0\.123 <span class=\"muted\">\(recipe: ", page)
    assert "http://" not in page
    assert "https://" not in page


def test_the_command_writes_the_page_anew(finished: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run(["-i", str(finished), "-o", str(page)]) == 0
    assert page.read_text(encoding="utf-8") == (finished / "report.html").read_text(encoding="utf-8")


def test_the_page_does_not_replace_a_file_of_the_run(finished: Path) -> None:
    config = (finished / "config.yml").read_bytes()
    with pytest.raises(BadValue, match=r"config.yml' is there and no .html file; name another"):
        run(["-i", str(finished), "-o", str(finished / "config.yml")])
    assert (finished / "config.yml").read_bytes() == config


@pytest.fixture
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is written at once."""
    monkeypatch.setattr("zoo.runs.report_page.CHARTS", ())


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """The run, to be changed."""
    return Path(shutil.copytree(finished, tmp_path / "logs" / "ppo" / "Toy-Reach_1"))


def test_an_evaluation_hides_no_update_of_the_same_step(copy: Path) -> None:
    lines = '{"step": 99, "train/actor/entropy": 1.5}\n{"step": 99, "eval/success_once": 0.5}\n'
    (copy / "metrics.jsonl").write_text(lines, encoding="utf-8")
    assert "entropy (nats)" in run_page(RunFolder(copy))


@pytest.mark.usefixtures("without_charts")
@pytest.mark.parametrize("ended_before", [False, True])
def test_a_run_that_has_not_ended_shows_its_newest_evaluation(copy: Path, ended_before: bool) -> None:
    EvaluationFile(copy, keep_until=10**6).add(5000, [0.0] * 3, [16] * 3, [True, True, False])
    if not ended_before:
        (copy / "evaluation.json").unlink()
    page = run_page(RunFolder(copy))
    assert '<span class="big">66.7%</span>' in page
    assert "2 of 3 episodes<br>" in page
    assert "evaluated after 5000 simulator steps" in page
    assert "not evaluated" not in page
    assert "Last evaluation" not in page


def changed(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """A damage: `change` of what a JSON file of a run holds."""

    def act(run: Path) -> None:
        values = json.loads((run / name).read_text())
        change(values)
        (run / name).write_text(json.dumps(values))

    return act


def appended(run: Path) -> None:
    """A damage: an episode of a task that there is not."""
    with (run / "monitor.csv").open("a") as file:
        file.write("1,3,1.0,1,99,3000\n")


def garbage(name: str) -> Callable[[Path], None]:
    """A damage: nothing of the file is left."""
    return lambda run: (run / name).write_bytes(b"garbage\n" * 9) and None


DAMAGES = {
    **{name: (name, garbage(name)) for name in ("monitor.csv", "evaluations.npz", "metrics.jsonl", "evaluation.json")},
    "fewer tasks": ("monitor.csv", changed("protocol.json", lambda all_: all_.update(tasks=all_["tasks"][:2]))),
    "no success": ("evaluation.json", changed("evaluation.json", lambda all_: all_.update(success={}))),
    "more successes than episodes": (
        "evaluation.json",
        changed("evaluation.json", lambda all_: all_["success"].update(successes=9)),
    ),
    "another task": ("monitor.csv", appended),
}
"""The file that is to be named, and what is done to the run."""


@pytest.mark.usefixtures("without_charts")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_record_of_the_wrong_content_is_one_line(
    damage: str, copy: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    name, act = DAMAGES[damage]
    act(copy)
    assert guarded(run, ["-i", str(copy)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert f"'{copy / name}'" in line
    # A run that goes on does not fail for it at its end.
    assert report_of(RunFolder(copy)) is None
    assert f"'{copy / name}" in caplog.messages[-1]


@pytest.mark.usefixtures("without_charts")
def test_a_run_that_was_evaluated_before_it_trained_shows_both(copy: Path) -> None:
    (copy / "evaluation.json").unlink()
    log = EvaluationFile(copy)
    log.add(0, [0.0] * 4, [12] * 4, [True, False, False, False])
    log.add(300, [0.0] * 4, [12] * 4, [True, True, True, False])
    page = run_page(RunFolder(copy))
    assert "25.0% &rarr; 75.0%" in page
    assert "1 of 4 episodes before" in page
    assert "Nothing was solved" not in page


@pytest.mark.usefixtures("without_charts")
def test_a_run_without_a_success_says_what_to_do(copy: Path) -> None:
    (copy / "evaluation.json").unlink()
    EvaluationFile(copy).add(300, [0.0] * 4, [12] * 4, [False] * 4)
    head, rows = (copy / "monitor.csv").read_text().split("\n", 1)
    names = rows.splitlines()[0]
    (copy / "monitor.csv").write_text(f"{head}\n{names}\n0.0,12,1.0,0,0,100\n")
    assert "<b>Nothing was solved.</b> Start from a policy trained on demonstrations" in run_page(RunFolder(copy))


def test_a_fine_tuned_run_has_a_page_without_training_episodes(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(finished, tmp_path / "logs" / "sft" / "Toy-Reach_1")
    (copy / "monitor.csv").unlink()
    config = dataclasses.replace(RunFolder(finished).config(), algo="sft", algo_kwargs={"batch_size": 8})
    monkeypatch.setattr(RunFolder, "config", lambda self: config)
    (copy / "metrics.jsonl").write_text('{"step": 1, "train/loss": 0.5}\n{"step": 2, "train/loss": 0.25}\n')
    page = run_page(RunFolder(copy))
    assert "SFT on Toy-Reach" in page
    assert "<h3>loss</h3>" in page
    assert "KL of an update" not in page


def test_a_training_curve_begins_when_every_environment_can_have_ended_an_episode() -> None:
    # Two environments, episodes of at most 10 steps: those that end before step 20 are the short, solved ones.
    success = np.array([1.0, 1.0, 0.0, 0.0, 1.0, 0.0])
    episodes = Episodes(
        steps=np.array([4, 6, 20, 22, 30, 40]),
        seconds=np.zeros(6),
        success=success,
        reward=success,
        length=np.array([2.0, 3.0, 10.0, 10.0, 4.0, 10.0]),
        task_id=np.zeros(6, dtype=np.int64),
    )
    curve = training_curve(episodes, success, window=2, num_envs=2)
    assert np.isnan(curve[:2]).all()
    assert curve[2:].tolist() == [0.5, 0.0, 0.5, 0.5]
    # Of a short run, half of its episodes at a time.
    assert training_curve(episodes, success, window=100, num_envs=2)[2:].tolist() == [2 / 3, 1 / 3, 1 / 3, 1 / 3]


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


def test_charts_take_the_page_s_colour_of_text_and_paint_no_background() -> None:
    point = EvaluationPoint(steps=0, rate=Rate(label="evaluation", successes=1, episodes=2))
    with rc_context(
        {"axes.grid": True, "grid.color": "#ffffff", "axes.facecolor": "#ffffff"}
    ):  # as seaborn leaves them
        picture = success_chart([point], None, num_envs=4, unit="updates")
    assert "currentColor" in picture
    assert "#010203" not in picture
    assert "#ffffff" not in picture
    assert "evaluated, 95 % interval" in picture


def test_numbers_that_cannot_be_negative_have_no_negative_axis() -> None:
    (speed,) = (chart for chart in CHARTS if chart.key == "time/sim_steps_per_second")
    ((_, picture),) = metric_charts([{"step": 100, "time/sim_steps_per_second": 174.0}], [speed])
    assert "\u2212" not in picture  # matplotlib's minus


def test_the_end_of_the_normal_range_is_drawn_where_it_is_near() -> None:
    charts = [Chart(title=key, key=key, low=0.0, limit=0.3) for key in ("small", "large")]
    (_, small), (_, large) = metric_charts([{"step": 1, "small": 0.01, "large": 0.9}], charts)
    assert ["#d1242f" in chart for chart in (small, large)] == [False, True]
