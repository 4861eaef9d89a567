from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.zoo.stand_ins import finished, toy_config
from vla_gym.errors import BadValue
from zoo.cli.main import guarded
from zoo.config.run_config import to_plain
from zoo.evaluation.statistics import Rate
from zoo.plot import _draw_group, at_points, pooled, read, run
from zoo.runs.folder import RunFolder
from zoo.runs.monitor import EvaluationFile, EvaluationPoint, MonitorFile


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Two runs of PPO and one of GRPO on Toy-Reach, two episodes each."""

    for algo, number in (("ppo", 1), ("ppo", 2), ("grpo", 1)):
        folder = tmp_path / "logs" / algo / f"Toy-Reach_{number}"
        folder.mkdir(parents=True)
        groups: dict[str, Any] = {"num_envs": 2, "env_options": {"group_size": 2}} if algo == "grpo" else {}
        config = toy_config(algo=algo, n_timesteps=100, **groups)
        (folder / "config.yml").write_text(yaml.safe_dump(to_plain(config)), encoding="utf-8")
        (folder / "args.yml").write_text("{}", encoding="utf-8")
        monitor = MonitorFile(folder, "Toy-Reach")
        monitor.add(finished(0.0, 30), 30)
        monitor.add(finished(1.0, 9, task_id=1), 39)
        monitor.close()
        EvaluationFile(folder).add(39, [1.0], [9], [True])
    return tmp_path / "logs"


def test_a_run_of_demonstrations_is_told_apart_from_a_damaged_one(logs: Path, tmp_path: Path) -> None:
    run_folder = tmp_path / "logs" / "sft" / "Toy-Reach_1"
    shutil.copytree(logs / "ppo" / "Toy-Reach_1", run_folder)
    config = (run_folder / "config.yml").read_text(encoding="utf-8")
    (run_folder / "config.yml").write_text(config.replace("algo: ppo", "algo: sft"), encoding="utf-8")
    (run_folder / "monitor.csv").unlink()
    with pytest.raises(BadValue, match=r"vla-zoo sft.* vla-zoo report -i"):
        run([str(run_folder)])


@pytest.mark.parametrize("axes", [("steps", "success"), pytest.param(("time", "length"), marks=pytest.mark.thorough)])
def test_curves_of_all_runs_are_drawn(
    logs: Path, tmp_path: Path, axes: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "curves.svg"
    assert run(["-f", str(logs), "-x", axes[0], "-y", axes[1], "-o", str(picture)]) == 0
    assert "3 runs drawn" in capsys.readouterr().out
    text = picture.read_text(encoding="utf-8")
    assert "ppo, 2 runs" in text
    assert "grpo, 1 run" in text


def test_the_last_evaluations_are_summed_up_over_runs_and_environments(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, solved in ((1, [True, False]), (2, [False, False])):
        (logs / "ppo" / f"Toy-Reach_{number}" / "evaluations.npz").unlink()
        EvaluationFile(logs / "ppo" / f"Toy-Reach_{number}").add(50, [0.0] * 2, [9] * 2, solved)
    assert run(["-f", str(logs), "-o", str(tmp_path / "curves.svg")]) == 0
    # Rates 50 % and 0 %; a resample of two may draw either alone.
    assert "ppo: last evaluations 25.0% [0.0%, 50.0%], interquartile mean of 2 runs" in capsys.readouterr().out


def test_a_band_is_the_interval_over_runs(logs: Path) -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    runs = [read(RunFolder(logs / "ppo" / f"Toy-Reach_{number}")) for number in (1, 2)]
    flat = dataclasses.replace(runs[1], episodes=dataclasses.replace(runs[1].episodes, success=np.zeros(2)))
    _draw_group(axes, [runs[0], flat], "#000000", "ppo", x_axis="episodes", y_axis="success", window=100)
    # Of two episodes half are averaged: the last one was solved in one run, not in the other.
    (line,) = axes.get_lines()
    (band,) = axes.collections
    assert line.get_ydata()[-1] == 0.5
    assert (band.get_paths()[0].vertices[:, 1].min(), band.get_paths()[0].vertices[:, 1].max()) == (0.0, 1.0)
    # Runs without an episode yet leave no line.
    none = dataclasses.replace(runs[0].episodes, **{name: np.zeros(0) for name in vars_of(runs[0].episodes)})
    empty = dataclasses.replace(runs[0], episodes=none)
    _draw_group(axes, [empty], "#000000", "grpo", x_axis="steps", y_axis="reward", window=1)


def test_runs_of_unequal_length_are_a_line_each(logs: Path) -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    short = read(RunFolder(logs / "ppo" / "Toy-Reach_1"))
    long = dataclasses.replace(short, episodes=dataclasses.replace(short.episodes, steps=np.array([30, 390])))
    _draw_group(axes, [short, long], "#000000", "ppo", x_axis="steps", y_axis="reward", window=100)
    ends = [line.get_xdata()[np.isfinite(line.get_ydata())][-1] for line in axes.get_lines()]
    assert len(ends) == 3
    assert ends[1] == long.episodes.steps[-1]
    assert ends[0] <= short.episodes.steps[-1] < ends[1]


def vars_of(record: object) -> list[str]:
    return [field.name for field in dataclasses.fields(record)]  # type: ignore[arg-type]


def test_a_found_run_that_cannot_be_read_is_left_out(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["-f", str(logs), "-o", str(tmp_path / "curves.svg")]
    (logs / "ppo" / "Toy-Reach_1" / "monitor.csv").unlink()
    (logs / "ppo" / "Toy-Reach_2" / "evaluations.npz").write_bytes(b"PK half")
    assert guarded(run, asked) == 0
    said = capsys.readouterr()
    assert "1 run drawn" in said.out
    first, second = said.err.splitlines()
    assert "Toy-Reach_1/monitor.csv': No such file" in first
    assert "evaluations.npz' is damaged" in second
    # One that was named is wanted.
    assert guarded(run, [str(logs / "ppo" / "Toy-Reach_1"), *asked]) == 2
    capsys.readouterr()
    assert guarded(run, [*asked, "-a", "ppo"]) == 2
    assert "error: none of 2 runs can be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("chosen", "drawn"),
    [
        (["-f", "{logs}"], "3 runs drawn"),
        (["-f", "{logs}", "-a", "ppo", "ppo", "-e", "Toy-Reach"], "2 runs drawn"),
        (["{logs}/grpo/Toy-Reach_1", "{logs}/grpo/../grpo/Toy-Reach_1"], "1 run drawn"),
    ],
)
def test_runs_are_chosen_and_count_once(
    chosen: list[str], drawn: str, logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*(word.format(logs=logs) for word in chosen), "-o", str(tmp_path / "curves")]) == 0
    said = capsys.readouterr().out
    assert drawn in said
    assert said.endswith(f"drawn into {tmp_path / 'curves.png'}\n")
    assert (tmp_path / "curves.png").is_file()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["-f", "{logs}", "-e", "LIBERO-130"], "there: grpo/Toy-Reach_1, ppo/Toy-Reach_1"),
        (["-f", "{logs}", "-o", "{logs}/curves.wav"], "cannot write"),
        (["-f", "{logs}", "-o", "{logs}"], "Is a directory"),
        (["{logs}/grpo/Toy-Reach_1", "-a", "ppo"], "-a"),
        (["{logs}/none"], "no folder"),
    ],
)
def test_mistakes_are_one_line(flags: list[str], named: str, logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(run, [word.format(logs=logs) for word in flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line


def test_a_curve_keeps_its_last_value_between_episodes() -> None:
    y_P = at_points(np.array([10, 20]), np.array([0.25, 0.5]), np.array([5, 10, 19, 20, 21]))
    assert np.isnan(y_P[[0, 4]]).all()  # before the run began, and after it ended
    assert y_P[1:4].tolist() == [0.25, 0.25, 0.5]
    assert np.isnan(at_points(np.array([]), np.array([]), np.array([1.0]))).all()


def test_evaluations_of_several_runs_are_joined_where_they_stand_for_the_same() -> None:
    def points(*steps: int) -> list[EvaluationPoint]:
        return [EvaluationPoint(steps=one, rate=Rate(label="", successes=1, episodes=4)) for one in steps]

    def joined(*runs: list[EvaluationPoint]) -> list[tuple[int, int]]:
        return [(point.steps, point.rate.episodes) for point in pooled(runs)]

    # Every 100 steps: at the first update past them, which differs from run to run.
    assert joined(points(0, 104, 230, 310), points(0, 116, 202, 330)) == [
        (0, 8), (110, 8), (216, 8), (320, 8),
    ]  # fmt: skip
    # A shorter run, and one that is evaluated half as often.
    assert joined(points(0, 104, 230), points(0, 116)) == [(0, 8), (110, 8), (230, 4)]
    assert joined(points(100, 200, 300, 400), points(202, 402)) == [
        (100, 4), (201, 8), (300, 4), (401, 8),
    ]  # fmt: skip
    # Ends of a short and of a long run are not the same.
    assert joined(points(1000), points(5000)) == [(1000, 4), (5000, 4)]
