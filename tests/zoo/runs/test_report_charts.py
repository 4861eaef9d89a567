from __future__ import annotations

import numpy as np
import pytest
from matplotlib import rc_context

from zoo.evaluation.statistics import Rate
from zoo.runs.curves import Episodes, EvaluationPoint
from zoo.runs.report_charts import CHARTS, Chart, health_charts, success_chart, success_per_task


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
    ((_, picture),) = health_charts([{"step": 100, "time/sim_steps_per_second": 174.0}], [speed])
    assert "\u2212" not in picture  # matplotlib's minus


@pytest.mark.parametrize(("value", "drawn"), [(0.01, False), (0.9, True)])
def test_the_end_of_the_normal_range_is_drawn_where_it_is_near(value: float, drawn: bool) -> None:
    chart = Chart(title="KL", key="kl", low=0.0, limit=0.3)
    ((_, picture),) = health_charts([{"step": 1, "kl": value}, {"step": 2, "kl": value}], [chart])
    assert ("#d1242f" in picture) == drawn
