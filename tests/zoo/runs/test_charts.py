"""Curves of runs, and their charts."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib import rc_context

from zoo.evaluation.statistics import Rate
from zoo.runs.charts import (
    CHARTS,
    Chart,
    at_points,
    metric_charts,
    pooled,
    success_chart,
    success_per_task,
    training_curve,
)
from zoo.runs.monitor import Episodes, EvaluationPoint


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


@pytest.mark.parametrize(("value", "drawn"), [(0.01, False), (0.9, True)])
def test_the_end_of_the_normal_range_is_drawn_where_it_is_near(value: float, drawn: bool) -> None:
    chart = Chart(title="KL", key="kl", low=0.0, limit=0.3)
    ((_, picture),) = metric_charts([{"step": 1, "kl": value}, {"step": 2, "kl": value}], [chart])
    assert ("#d1242f" in picture) == drawn
