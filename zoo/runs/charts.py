"""Drawings of runs: learning curves of several as one image (`zoo.plot`), charts of one as SVG (`zoo.report`).

Shape letters: E episodes, P points on the horizontal axis, R runs.
"""

from __future__ import annotations

import io
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from vla_gym.errors import BadValue, os_reason
from zoo.config.advice import CLIP_FRACTION_HIGH, ENTROPY_LOW, KL_HIGH
from zoo.config.algorithm_configs import ALGORITHMS
from zoo.config.run_config import RunConfig
from zoo.evaluation.statistics import interquartile_interval, interquartile_mean, together
from zoo.files import atomic_file
from zoo.runs.monitor import Episodes, EvaluationPoint

X_LABELS = {"steps": "simulator steps", "episodes": "episodes", "time": "hours"}
Y_LABELS = {"success": "success", "reward": "return", "length": "episode length (simulator steps)"}
WINDOW = 50
"""Training episodes that the charts of a run average."""
_POINTS = 200
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


# Curves ---------------------------------------------------------------------------------------------


def training_curve(episodes: Episodes, value_E: np.ndarray, *, window: int, num_envs: int) -> np.ndarray:
    """Moving mean of a training run's episodes, float64 `[E]`; nan where it would flatter the run.

    The first episodes to end are the short ones, which are the solved ones. A mean is fair once every environment can
    have ended its first episode: after `num_envs` x the longest episode's steps. A run with fewer than two windows of
    episodes is averaged over half of them.
    """
    if not len(value_E):
        return np.empty(0)
    window = min(window, max(1, len(value_E) // 2))
    total_E = np.concatenate([[0.0], np.cumsum(value_E, dtype=np.float64)])
    mean_E = np.full(len(value_E), np.nan)
    mean_E[window - 1 :] = (total_E[window:] - total_E[:-window]) / window
    return np.where(episodes.steps >= num_envs * episodes.length.max(), mean_E, np.nan)


def at_points(x_E: np.ndarray, y_E: np.ndarray, point_P: np.ndarray) -> np.ndarray:
    """The latest y at or before each point, float64 `[P]`; nan before the first x and past the last, which ascend."""
    if not len(x_E):
        return point_P * np.nan
    index_P = np.searchsorted(x_E, point_P, side="right") - 1
    return np.where((index_P >= 0) & (point_P <= x_E[-1]), y_E[np.maximum(index_P, 0)], np.nan)


def pooled(evaluations: Sequence[Sequence[EvaluationPoint]]) -> list[EvaluationPoint]:
    """Return evaluations of several runs at about the same steps counted together, at their mean step; ascending.

    A run is evaluated at its first update past a multiple of steps, which other runs reach some steps earlier or later.
    Counted together are evaluations of different runs that are no further apart than half the way to the next
    evaluation, or the one before, of either run.
    """
    placed: list[tuple[int, float, int, EvaluationPoint]] = []  # (steps, half the way to the nearest other, run, point)
    for run, points in enumerate(evaluations):
        gaps = np.diff([0, *(point.steps for point in points), np.inf])
        placed += [(point.steps, min(gaps[at : at + 2]) / 2, run, point) for at, point in enumerate(points)]
    groups: list[list[tuple[int, float, int, EvaluationPoint]]] = []
    for steps, reach, run, point in sorted(placed, key=lambda one: one[0]):
        last = groups[-1] if groups else []
        if last and all(run != other[2] and steps - other[0] <= min(reach, other[1]) for other in last):
            last.append((steps, reach, run, point))
        else:
            groups.append([(steps, reach, run, point)])
    return [
        EvaluationPoint(
            steps=round(statistics.fmean(one[0] for one in group)),
            rate=together("evaluation", [one[3].rate for one in group]),
        )
        for group in groups
    ]


# Learning curves of several runs --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RunCurves:
    """A run with its curves."""

    config: RunConfig
    episodes: Episodes
    evaluations: Sequence[EvaluationPoint]


def draw_runs(runs: Sequence[RunCurves], *, x_axis: str, y_axis: str, window: int, output: Path) -> None:
    """Write an image: per environment and algorithm the interquartile mean over its runs with a bootstrap interval.

    Evaluations of all runs together stand on the curves of success.

    Raises `BadValue` for a file that cannot be written.
    """
    from matplotlib.colors import TABLEAU_COLORS
    from matplotlib.figure import Figure

    # By name: `C0` and `C1` would be whatever another library has made of matplotlib's cycle.
    colours = dict(zip(ALGORITHMS, TABLEAU_COLORS, strict=False))
    groups: dict[str, dict[str, list[RunCurves]]] = {}
    for curves in runs:
        groups.setdefault(curves.config.env, {}).setdefault(curves.config.algo, []).append(curves)
    columns = 1 if len(groups) <= 3 else 2
    rows = math.ceil(len(groups) / columns)
    figure = Figure(figsize=(6.4 * columns, 0.6 + 3.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in panels[len(groups) :]:
        unused.set_axis_off()
    for axes, (env, by_algo) in zip(panels, groups.items(), strict=False):
        for algo, members in by_algo.items():
            _draw_group(axes, members, colours[algo], algo, x_axis=x_axis, y_axis=y_axis, window=window)
        axes.set(title=env, xlabel=X_LABELS[x_axis], ylabel=Y_LABELS[y_axis])
        if y_axis == "success":
            axes.set_ylim(-0.02, 1.02)
        axes.grid(alpha=0.3)
        axes.legend()
    try:
        with atomic_file(output) as partial:
            figure.savefig(partial, format=output.suffix.removeprefix(".") or "png")
    except (OSError, ValueError) as error:
        reason = os_reason(error) if isinstance(error, OSError) else error
        raise BadValue(f"cannot write '{output}': {reason}") from error


def _draw_group(
    axes: Any, runs: Sequence[RunCurves], colour: str, algo: str, *, x_axis: str, y_axis: str, window: int
) -> None:
    curves = []
    for run in runs:
        episodes = run.episodes
        x = {"steps": episodes.steps, "time": episodes.seconds / 3600, "episodes": 1 + np.arange(len(episodes.steps))}
        y_E = training_curve(episodes, getattr(episodes, y_axis), window=window, num_envs=run.config.num_envs)
        curves.append((x[x_axis], y_E))
    longest = max((x_E[-1] for x_E, _ in curves if len(x_E)), default=0.0)
    point_P = np.linspace(0, longest, _POINTS)
    y_RP = np.array([at_points(x_E, y_E, point_P) for x_E, y_E in curves if np.isfinite(y_E).any()]).reshape(
        -1, _POINTS
    )
    # Where every run has episodes.
    begun_P = np.isfinite(y_RP).all(axis=0)
    point_P, y_RP = point_P[begun_P], y_RP[:, begun_P]
    label = f"{algo}, {len(runs)} run{'s' if len(runs) != 1 else ''}"
    evaluated = pooled([run.evaluations for run in runs]) if (x_axis, y_axis) == ("steps", "success") else []
    # Where both are drawn the evaluations are the result, and training stands behind them.
    mean_P = interquartile_mean(y_RP) if len(y_RP) else [math.nan] * len(point_P)
    axes.plot(point_P, mean_P, color=colour, label=f"{label}, training", alpha=0.5 if evaluated else 1.0)
    if len(y_RP) > 1:
        low_P, high_P = interquartile_interval([y_RP])
        axes.fill_between(point_P, low_P, high_P, color=colour, alpha=0.2, linewidth=0)
    _draw_evaluations(axes, evaluated, color=colour, fmt="o-", label=f"{label}, evaluated")


def _draw_evaluations(axes: Any, points: Sequence[EvaluationPoint], **style: Any) -> None:
    if not points:
        return
    mean = np.array([point.rate.mean for point in points])
    bars = np.abs(np.array([point.rate.interval for point in points]).T - mean)
    axes.errorbar([point.steps for point in points], mean, yerr=bars, capsize=3, **style)


# Charts of one run ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Chart:
    """The metric `key` over the run; without numbers it is left out.

    The axis ends at `low` and `high`, and is fitted where they are None. `normal` is the normal range in words, as
    docs/algorithms.md has it, `limit` its end, drawn where the axis reaches it.
    """

    title: str
    key: str
    low: float | None = None
    high: float | None = None
    normal: str = ""
    limit: float | None = None


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
    """Return evaluations with their intervals over the run's `unit`, and behind them the mean of training episodes."""
    with _style():
        figure = _figure(6.4, 3.2)
        axes = figure.subplots()
        if episodes is not None and len(episodes.steps):
            mean_E = training_curve(episodes, episodes.success, window=WINDOW, num_envs=num_envs)
            if np.isfinite(mean_E).any():
                axes.plot(episodes.steps, mean_E, color=_TRAINING, label=f"training, mean of {WINDOW} episodes")
        _draw_evaluations(axes, points, color=_EVALUATION, fmt="o-", label="evaluated, 95 % interval")
        axes.set(xlabel=unit, ylim=(-0.02, 1.02))
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        _tidy(axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False)
        return _svg(figure)


def metric_charts(metrics: Sequence[Mapping[str, float | None]], charts: Sequence[Chart]) -> list[tuple[Chart, Markup]]:
    """Return the charts that have numbers."""
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
        fitted = None if chart.low is None else max(chart.low, *values) * 1.08 or 1.0
        axes.set_ylim(chart.low, fitted if chart.high is None else chart.high)
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
    """Return the figure as an element of the page, the same for the same numbers."""
    text = io.StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(text, format="svg", transparent=True, metadata=metadata)
    element = text.getvalue()[text.getvalue().index("<svg") :].replace(_INK, "currentColor")
    # HTML knows both namespaces by itself.
    return Markup(re.sub(r' xmlns(:xlink)?="[^"]*"', "", element))  # noqa: S704 - matplotlib escapes its texts
