from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from stable_baselines3.common.monitor import load_results

from tests.zoo.stand_ins import finished
from vla_gym.errors import BadValue
from zoo.runs.folder import RunFolder
from zoo.runs.monitor import EvaluationFile, MonitorFile, read_episodes, read_evaluations


def test_a_resumed_run_keeps_rows_up_to_its_checkpoint(tmp_path: Path) -> None:
    first = MonitorFile(tmp_path, "Toy-Reach")
    for at in (10, 20, 30):
        first.add(finished(0.0, at // 10, task_id=2), at)
    first.close()
    header = (tmp_path / "monitor.csv").read_text().splitlines()[0]
    with (tmp_path / "monitor.csv").open("a") as half:
        half.write("0.0,7")  # the kill came in the middle of a line
    second = MonitorFile(tmp_path, "Toy-Reach", keep_until=20)
    second.add(finished(0.0, 9, task_id=2), 40)
    second.close()
    assert load_results(str(tmp_path))["l"].tolist() == [1, 2, 9]
    assert (tmp_path / "monitor.csv").read_text().splitlines()[0] == header


def test_seconds_go_on_where_a_run_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("zoo.runs.monitor.time.monotonic", lambda: now)
    first = MonitorFile(tmp_path, "Toy-Reach")
    for at in (10, 20, 30):
        now += 10.0
        first.add(finished(0.0, 5), at)
    first.close()
    now = 90_000.0
    second = MonitorFile(tmp_path, "Toy-Reach", keep_until=20)
    now += 7.0
    second.add(finished(0.0, 5), 40)
    second.close()
    assert read_episodes(RunFolder(tmp_path)).seconds.tolist() == [10.0, 20.0, 27.0]


def test_evaluations_grow_and_resume(tmp_path: Path) -> None:
    first = EvaluationFile(tmp_path)
    first.add(100, [0.0, 1.0], [16, 4], [False, True])
    first.add(200, [1.0, 1.0], [5, 4], [True, True])
    second = EvaluationFile(tmp_path, keep_until=150)
    assert second.timesteps == [100]
    second.add(300, [0.0, 0.0], [16, 16], [False, False])
    with np.load(tmp_path / "evaluations.npz") as file:
        assert file["timesteps"].tolist() == [100, 300]
        assert file["successes"].tolist() == [[False, True], [False, False]]
        assert file["ep_lengths"].tolist() == [[16, 4], [16, 16]]
        assert file["results"].shape == (2, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["evaluations.npz"]


def test_a_damaged_monitor_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "monitor.csv"
    for damage in (b"garbage", b"", b"#{}\nr,l\n", b"#[1]\n", b"\xff\xfe\x00", b'#{"t_start": 1.0}\nr\x00\n\xff'):
        path.write_bytes(damage)
        with pytest.raises(BadValue, match=r"monitor\.csv' is damaged: .* move it away"):
            MonitorFile(tmp_path, "Toy-Reach", keep_until=20)
        assert path.read_bytes() == damage


def test_damaged_evaluations_are_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.npz"
    arrays = {"timesteps": np.array([1, 2]), "results": np.zeros((2, 1)), "ep_lengths": np.zeros((2, 1))}
    buffers: list[bytes] = [b"garbage", b"", b"PK\x03\x04 half a zip"]
    for others in ({}, {"successes": np.zeros((1, 1))}, {"successes": np.zeros(2)}, {"successes": np.full((2, 1), 7)}):
        np.savez(path, **arrays, **others)
        buffers.append(path.read_bytes())
    for damage in buffers:
        path.write_bytes(damage)
        with pytest.raises(BadValue, match=r"evaluations\.npz' is damaged: .* move it away"):
            EvaluationFile(tmp_path, keep_until=150)
        assert path.read_bytes() == damage


def write_run(logs: Path) -> None:
    folder = logs / "ppo" / "Toy-Reach_1"
    folder.mkdir(parents=True)
    monitor = MonitorFile(folder, "Toy-Reach")
    for index in range(20):
        monitor.add(finished(float(index > 9), 4, task_id=2), 4 * index + 4)
    monitor.close()
    evaluations = EvaluationFile(folder)
    for at in (40, 80):
        evaluations.add(at, [at / 80, at / 80], [4, 4], [at == 80, at == 80])


@pytest.mark.processes
@pytest.mark.filterwarnings("default")
def test_rl_zoo3_plots_our_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from rl_zoo3.plots.all_plots import all_plots
    from rl_zoo3.plots.plot_train import plot_train

    write_run(tmp_path)
    for axis in ("success", "reward", "length"):
        command = ["plot_train", "-a", "ppo", "-e", "Toy-Reach", "-f", str(tmp_path), "-y", axis, "-w", "5"]
        monkeypatch.setattr(sys, "argv", command)
        plot_train()
        (line,) = plt.gca().get_lines()
        assert len(line.get_ydata()) == 16
        if axis == "success":
            assert line.get_ydata()[-1] == 1.0
        plt.close("all")
    command = ["all_plots", "-a", "ppo", "-e", "Toy-Reach", "-f", str(tmp_path), "-k", "successes", "--no-display"]
    monkeypatch.setattr(sys, "argv", command)
    all_plots()
    plt.close("all")
    assert "1 +/- 0" in capsys.readouterr().out


def test_files_of_a_run_are_read_back_as_written(tmp_path: Path) -> None:
    file = MonitorFile(tmp_path, "Toy-Reach")
    file.add(finished(1.0, 12, task_id=2), 40)
    file.add(finished(0.0, 30), 70)
    file.close()
    log = EvaluationFile(tmp_path)
    log.add(64, [1.0, 0.0, 1.0], [5, 6, 7], [True, False, True])
    episodes = read_episodes(RunFolder(tmp_path))
    assert episodes.steps.tolist() == [40, 70]
    assert episodes.success.tolist() == [1.0, 0.0]
    assert episodes.length.tolist() == [12.0, 30.0]
    assert episodes.task_id.tolist() == [2, 0]
    (point,) = read_evaluations(RunFolder(tmp_path))
    assert (point.steps, point.rate.successes, point.rate.episodes) == (64, 2, 3)
