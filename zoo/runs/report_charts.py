"""The charts of a run's page, each an SVG element that takes the page's own colours, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from zoo.config.advice import CLIP_FRACTION_HIGH, ENTROPY_LOW, KL_HIGH
from zoo.runs.curves import Episodes, EvaluationPoint, training_curve

WINDOW = 50
"""Training episodes averaged."""
_BINS = 20
_INK = "#010203"
"""Stands for the page's colour of text in what matplotlib writes."""
_TRAINING, _EVALUATION = "#8b949e", "#2f81f7"
_STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "svg.hashsalt": "vla-zoo",
}


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One metric over the run; without numbers it is left out."""

    title: str
    """With its unit."""
    key: str
    """Metric."""
    low: float | None = None
    """Lower end of the axis; None fits it."""
    high: float | None = None
    """Upper end."""
    normal: str = ""
    """Normal range in words, as docs/algorithms.md has it."""
    limit: float | None = None
    """End of the normal range, drawn where the axis reaches it."""


CHARTS = (
    Chart(title="return of an episode", key="env/return"),
    Chart(title="length of an episode (simulator steps)", key="env/episode_len", low=0.0),
    Chart(
        title="KL of an update (nats)",
        key="train/actor/approx_kl_k3",
        low=0.0,
        normal=f"below {KL_HIGH:g}",
        limit=KL_HIGH,
    ),
    Chart(
        title="clipped share",
        key="train/actor/clip_fraction",
        low=0.0,
        normal=f"below {CLIP_FRACTION_HIGH:g}",
        limit=CLIP_FRACTION_HIGH,
    ),
    Chart(title="entropy (nats)", key="train/actor/entropy", normal=f"of tokens above {ENTROPY_LOW:g}"),
    Chart(title="gradient norm", key="train/actor/grad_norm", low=0.0, normal="finite"),
    Chart(
        title="value explained (cut off at -1)",
        key="train/critic/explained_variance",
        low=-1.0,
        high=1.05,
        normal="rising towards 1",
    ),
    Chart(title="groups kept", key="rollout/groups_kept", low=0.0, high=1.05, normal="above 0"),
    Chart(title="simulator steps per second", key="time/sim_steps_per_second", low=0.0),
)
"""Of PPO and GRPO, below the success curve."""
SFT_CHARTS = (
    Chart(title="loss", key="train/loss", normal="falling"),
    Chart(title="gradient norm", key="train/actor/grad_norm", low=0.0, normal="finite"),
    Chart(title="learning rate", key="train/actor/lr", low=0.0),
)


def success_chart(points: Sequence[EvaluationPoint], episodes: Episodes | None, *, num_envs: int, unit: str) -> Markup:
    """Evaluations with their intervals over the run's `unit`, and behind them the mean of training episodes."""
    with _style():
        figure = _figure(6.4, 3.2)
        axes = figure.subplots()
        if episodes is not None and len(episodes.steps):
            mean_E = training_curve(episodes, episodes.success, window=WINDOW, num_envs=num_envs)
            if np.isfinite(mean_E).any():
                axes.plot(episodes.steps, mean_E, color=_TRAINING, label=f"training, mean of {WINDOW} episodes")
        if points:
            ends = np.array([point.rate.interval for point in points]).T
            mean = np.array([point.rate.mean for point in points])
            steps, bars = [point.steps for point in points], np.abs(ends - mean)
            axes.errorbar(
                steps, mean, yerr=bars, color=_EVALUATION, fmt="o-", capsize=3, label="evaluated, 95 % interval"
            )
        axes.set(xlabel=unit, ylim=(-0.02, 1.02))
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        _tidy(axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False)
        return _svg(figure)


def health_charts(metrics: Sequence[Mapping[str, float | None]], charts: Sequence[Chart]) -> list[tuple[Chart, Markup]]:
    """The charts that have numbers."""
    drawn = []
    for chart in charts:
        # An evaluation has a line of its own at the step of the update before it.
        points = {line["step"]: value for line in metrics if (value := line.get(chart.key)) is not None}
        if points:
            drawn.append((chart, _chart(chart, list(points), list(points.values()))))
    return drawn


def _chart(chart: Chart, steps: Sequence[float | None], values: Sequence[float]) -> Markup:
    with _style():
        figure = _figure(4.2, 2.2)
        axes = figure.subplots()
        axes.plot(steps, values, color=_EVALUATION, marker="o" if len(values) == 1 else "")
        if chart.high is None and chart.low is not None:
            axes.set_ylim(chart.low, max(chart.low, *values) * 1.08 or 1.0)
        else:
            axes.set_ylim(chart.low, chart.high)
        if chart.limit is not None and axes.get_ylim()[1] > chart.limit:
            axes.axhline(chart.limit, color="#d1242f", linestyle="--", linewidth=1)
        _tidy(axes)
        return _svg(figure)


def task_chart(episodes: Episodes, tasks: Sequence[str]) -> Markup | None:
    """Solved training episodes of each task that was tried, over the run; None of a single task."""
    if len(tasks) < 2 or not len(episodes.steps):
        return None
    share = success_per_task(episodes, len(tasks), _BINS)
    tried = ~np.isnan(share).all(axis=1)
    with _style():
        figure = _figure(9.0, 0.6 + 0.2 * tried.sum())
        axes = figure.subplots()
        axes.imshow(share[tried], cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="none")
        names = [name for name, was_tried in zip(tasks, tried, strict=True) if was_tried]
        axes.set_yticks(range(len(names)), names, parse_math=False)
        axes.set_xticks([])
        return _svg(figure)


def success_per_task(episodes: Episodes, num_tasks: int, bins: int) -> np.ndarray:
    """Share of solved training episodes by task and time, `[num_tasks, bins]`; nan where none ended.

    Time is cut into `bins` equal spans of simulator steps, from 0 to the last episode's end.
    """
    count = np.zeros((num_tasks, bins))
    solved = np.zeros((num_tasks, bins))
    if len(episodes.steps):
        bin_E = np.minimum(episodes.steps * bins // max(1, int(episodes.steps[-1])), bins - 1)
        np.add.at(count, (episodes.task_id, bin_E), 1)
        np.add.at(solved, (episodes.task_id, bin_E), episodes.success)
    return np.divide(solved, count, out=np.full(count.shape, np.nan), where=count > 0)


def _style() -> Any:
    from matplotlib import style  # only the process that writes the page pays for it

    # Others may have changed matplotlib's settings: seaborn does when it is imported.
    return style.context(["default", _STYLE])


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _tidy(axes: Any) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)


def _svg(figure: Any) -> Markup:
    """The figure as an element of the page, the same for the same numbers."""
    text = io.StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(text, format="svg", transparent=True, metadata=metadata)
    element = text.getvalue()[text.getvalue().index("<svg") :].replace(_INK, "currentColor")
    # HTML knows both namespaces by itself.
    return Markup(re.sub(r' xmlns(:xlink)?="[^"]*"', "", element))  # noqa: S704 - matplotlib escapes its texts
