from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.zoo.stand_ins import finished
from vla_gym.errors import BadValue
from zoo.evaluation.statistics import Rate
from zoo.runs.curves import (
    Episodes,
    EvaluationPoint,
    at_points,
    moving_mean,
    pooled,
    read_episodes,
    read_evaluations,
    read_metrics,
    training_curve,
)
from zoo.runs.folder import RunFolder
from zoo.runs.monitor import EvaluationFile, MonitorFile


def test_the_moving_mean_begins_with_a_full_window() -> None:
    # The last two entries of each: none, then 4 and 0, 0 and 2, 2 and 6.
    assert moving_mean(np.array([4.0, 0.0, 2.0, 6.0]), 2)[1:].tolist() == [2.0, 1.0, 4.0]
    assert np.isnan(moving_mean(np.array([4.0, 0.0]), 2)[0])
    assert moving_mean(np.array([4.0, 0.0]), 1).tolist() == [4.0, 0.0]


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


def test_a_curve_keeps_its_last_value_between_episodes() -> None:
    y_P = at_points(np.array([10, 20]), np.array([0.25, 0.5]), np.array([5, 10, 19, 20, 21]))
    assert np.isnan(y_P[[0, 4]]).all()  # before the run began, and after it ended
    assert y_P[1:4].tolist() == [0.25, 0.25, 0.5]
    assert np.isnan(at_points(np.array([]), np.array([]), np.array([1.0]))).all()


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


def test_evaluations_of_several_runs_are_joined_where_they_stand_for_the_same() -> None:
    def points(*steps: int) -> list[EvaluationPoint]:
        return [EvaluationPoint(steps=one, rate=Rate(label="", successes=1, episodes=4)) for one in steps]

    def joined(*runs: list[EvaluationPoint]) -> list[tuple[int, int, int]]:
        return [(point.steps, point.runs, point.rate.episodes) for point in pooled(runs)]

    # Every 100 steps: at the first update past them, which differs from run to run.
    assert joined(points(0, 104, 230, 310), points(0, 116, 202, 330)) == [
        (0, 2, 8), (110, 2, 8), (216, 2, 8), (320, 2, 8),
    ]  # fmt: skip
    # A shorter run, and one that is evaluated half as often.
    assert joined(points(0, 104, 230), points(0, 116)) == [(0, 2, 8), (110, 2, 8), (230, 1, 4)]
    assert joined(points(100, 200, 300, 400), points(202, 402)) == [
        (100, 1, 4), (201, 2, 8), (300, 1, 4), (401, 2, 8),
    ]  # fmt: skip
    # Ends of a short and of a long run are not the same.
    assert joined(points(1000), points(5000)) == [(1000, 1, 4), (5000, 1, 4)]


def test_a_foreign_monitor_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"cannot read '.*monitor\.csv': No such file"):
        read_episodes(RunFolder(tmp_path))
    (tmp_path / "monitor.csv").write_text("#{}\nr,l,t\n1,2,3\n", encoding="utf-8")
    with pytest.raises(BadValue, match="no column 'num_timesteps'"):
        read_episodes(RunFolder(tmp_path))


def test_a_monitor_may_end_in_half_a_line(tmp_path: Path) -> None:
    file = MonitorFile(tmp_path, "Toy-Reach")
    file.add(finished(1.0, 12, task_id=2), 40)
    file.close()
    whole = (tmp_path / "monitor.csv").read_bytes()
    for half in (b"0.0,7", b"0.5,12,3.1,1,4,", b"0.5,12,3.1,1,4,20"):
        (tmp_path / "monitor.csv").write_bytes(whole + half)
        assert read_episodes(RunFolder(tmp_path)).steps.tolist() == [40]


def test_damaged_files_are_named(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for damage in (b"garbage", b"", b"\xff\xfe\x00\xff\n\xff", b"#{}\nr,l\n\x00\n"):
        (tmp_path / "monitor.csv").write_bytes(damage)
        with pytest.raises(BadValue, match=r"monitor\.csv' (is damaged|is no UTF-8|has no column 'num_time)"):
            read_episodes(run)
    (tmp_path / "evaluations.npz").write_bytes(b"garbage")
    with pytest.raises(BadValue, match=r"evaluations\.npz' is damaged"):
        read_evaluations(run)


def test_metrics_may_end_in_half_a_line_and_no_other_damage(tmp_path: Path) -> None:
    path, run = tmp_path / "metrics.jsonl", RunFolder(tmp_path)
    path.write_text('{"step": 1}\n{"step": 2, "a"')
    assert read_metrics(run) == [{"step": 1}]
    for damage, says in (
        (b'{"step": 1}\ngarbage\n{"step": 2}\n', "line 2' is not valid JSON"),
        (b'{"a": 1}\n', "line 1 does not say its step"),
        (b"[1]\n", "line 1 does not say its step"),
    ):
        path.write_bytes(damage)
        with pytest.raises(BadValue, match=rf"metrics\.jsonl' is damaged: .*{says}"):
            read_metrics(run)
