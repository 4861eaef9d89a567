"""A run on one HTML page: result, curves, success per task over time, video, settings. Nothing is fetched.

Shape letter: E episodes.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from vla_gym.errors import BadValue, VLAZooError, os_reason
from vla_gym.reading import read_text
from zoo.config.advice import CLIP_FRACTION_HIGH, ENTROPY_LOW, KL_HIGH, NO_SIGNAL_ADVICE
from zoo.config.hyperparams import packaged_entry
from zoo.config.settings import yaml_line
from zoo.evaluation.robustness import draw_robustness
from zoo.evaluation.statistics import Rate, rate_of
from zoo.files import content_of, damaged, read_json, write_text
from zoo.runs.evaluations import find_robustness, policy_line, weights_sha256
from zoo.runs.folder import (
    COMMAND_FILE,
    EVALUATION_FILE,
    MONITOR_FILE,
    PROTOCOL_FILE,
    REPORT_FILE,
    ROBUSTNESS_FILE,
    RunFolder,
)
from zoo.runs.lookup import policy_folder
from zoo.runs.monitor import Episodes, EvaluationPoint, read_episodes, read_evaluations, read_metrics

_logger = logging.getLogger(__name__)
_MOST_VIDEO = 16 * 2**20
"""Bytes; a larger video is linked instead of enclosed."""
WINDOW = 50
"""Training episodes that the charts of a run average."""
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


def run_page(run: RunFolder) -> str:
    """The page as HTML text; raises `BadValue` when `run` lacks its configuration or the files of its algorithm."""
    config = run.config()
    finetuned = config.algo == "sft"
    # Fine-tuning plays no episodes but those of evaluations.
    episodes = None if finetuned and not (run.path / MONITOR_FILE).is_file() else read_episodes(run)
    points, metrics = read_evaluations(run), read_metrics(run)
    unit = "updates" if finetuned else "simulator steps"
    result = _result(run, points, unit)
    protocol, tasks = _protocol(run, episodes)
    before = points[0].rate if len(points) > 1 and points[0].steps == 0 else None
    command = run.path / COMMAND_FILE
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {"percent": "{:.1%}".format, "yaml": yaml_line}
    template = environment.from_string(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
    return template.render(
        name=run.path.name,
        config=config,
        policy=shown_policy(config.policy),
        result=result,
        before=before,
        advice=NO_SIGNAL_ADVICE if _never_succeeded(result, episodes) else "",
        num_episodes=0 if episodes is None else len(episodes.steps),
        success_chart=success_chart(points, episodes, num_envs=config.num_envs, unit=unit),
        task_chart=task_chart(episodes, tasks) if episodes else None,
        video=_video(run),
        robustness=_robustness(run),
        charts=metric_charts(metrics, SFT_CHARTS if finetuned else CHARTS),
        unit=unit,
        duration=timedelta(seconds=math.ceil(sum(line.get("time/iteration_seconds") or 0.0 for line in metrics))),
        machine="; ".join(str(protocol[name]) for name in ("machine", "launch") if protocol.get(name)),
        read_as=policy_line(protocol["read_as"]) if "read_as" in protocol else "",
        recipe=None if finetuned else packaged_entry(config.algo, config.entry),
        settings={**config.env_options, **config.algo_kwargs},
        command=read_text(command) if command.is_file() else "",
        protocol=json.dumps(protocol, indent=1),
    )


def write_run_page(run: RunFolder, output: Path | None = None) -> Path:
    """Write the page to `output`, by default `report.html` in the run folder; returns where it is.

    Raises `BadValue` for a file that cannot be written, and what `run_page` raises.
    """
    path = run.path / REPORT_FILE if output is None else output
    if path.is_file() and path.suffix not in (".html", ".htm"):
        raise BadValue(f"'{path}' is there and no .html file; name another for the page")
    page = run_page(run)
    try:
        write_text(path, page)
    except OSError as error:
        raise BadValue(f"cannot write '{path}': {os_reason(error)}") from error
    return path


def report_of(run: RunFolder) -> Path | None:
    """Write the page of a run that has ended; None, and a warning, where that fails: the run itself is whole."""
    try:
        return write_run_page(run)
    except VLAZooError as error:
        _logger.warning(f"no page of the run was written: {error}")
        return None


def shown_policy(policy: str) -> str:
    """The policy without the folders of this machine: a family, a Hub id, `agents/...` or a path's last two parts."""
    path = Path(policy)
    if not path.is_absolute():
        return policy
    parts = path.parts[path.parts.index("agents") :] if "agents" in path.parts else path.parts[-2:]
    return "/".join(parts)


@dataclass(frozen=True, kw_only=True)
class _Result:
    """The evaluation that the page begins with."""

    rate: Rate
    tasks: Sequence[Rate] = ()
    note: str
    """How it was made."""


def _result(run: RunFolder, points: Sequence[EvaluationPoint], unit: str) -> _Result | None:
    # Its last evaluation; of one that has not ended, the newest of `points`.
    path = run.path / EVALUATION_FILE
    record = read_json(path) if path.is_file() else {}
    with content_of(path):
        # Another one is of the end before the run went on.
        if record and (not points or record.get("num_timesteps", points[-1].steps) >= points[-1].steps):
            tasks = [rate_of(task) for task in record.get("tasks", ())]
            return _Result(rate=rate_of(record["success"]), tasks=tasks, note=record.get("summary", ""))
    if not points:
        return None
    return _Result(rate=points[-1].rate, note=f"evaluated after {points[-1].steps} {unit}")


def _robustness(run: RunFolder) -> Markup | None:
    if not (run.path / ROBUSTNESS_FILE).is_file():
        return None
    record = find_robustness(run, weights_sha256(policy_folder(str(run.path))))
    with content_of(run.path / ROBUSTNESS_FILE):
        rates = [rate_of(axis) for axis in record["axes"]] if record else []
    return robustness_chart(rates) if rates else None


def _protocol(run: RunFolder, episodes: Episodes | None) -> tuple[Mapping[str, Any], list[str]]:
    path = run.path / PROTOCOL_FILE
    protocol = read_json(path) if path.is_file() else {}
    with content_of(path):
        tasks = [str(task["name"]) for task in protocol.get("tasks", ())]
    if episodes is not None and tasks and (last := episodes.task_id.max(initial=0)) >= len(tasks):
        raise damaged(run.path / MONITOR_FILE, f"its task_id must be in 0 .. {len(tasks) - 1}, got {last}")
    return protocol, tasks


def _never_succeeded(result: _Result | None, episodes: Episodes | None) -> bool:
    trained = episodes is not None and len(episodes.steps) > 0
    solved = (result.rate.successes if result else 0) + (episodes.success.sum() if episodes else 0)
    return (result is not None or trained) and not solved


def _video(run: RunFolder) -> str:
    """Address of the run's newest own video, in the page itself where it is small; "" without one."""
    videos = run.own_videos()
    if not videos:
        return ""
    if videos[-1].stat().st_size <= _MOST_VIDEO:
        return f"data:video/mp4;base64,{base64.b64encode(videos[-1].read_bytes()).decode()}"
    return f"{run.videos.name}/{videos[-1].name}"


# Charts ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Chart:
    """The metric `key` over the run; without numbers it is left out.

    The axis ends at `low` and `high`, and is fitted where they are None. `normal` is the normal range in words, as
    docs/metrics.md has it, `limit` its end, drawn where the axis reaches it.
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
        draw_evaluations(axes, points, color=_EVALUATION, fmt="o-", label="evaluated, 95 % interval")
        axes.set(xlabel=unit, ylim=(-0.02, 1.02))
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        _tidy(axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False)
        return _svg(figure)


def robustness_chart(rates: Sequence[Rate]) -> Markup:
    """Return a bar for each axis of `vla-zoo evaluate --robustness`, the unchanged environment first."""
    with _style():
        figure = _figure(7.0, 0.8 + 0.3 * len(rates))
        draw_robustness(figure, rates)
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


def draw_evaluations(axes: Any, points: Sequence[EvaluationPoint], **style: Any) -> None:
    """Draw rates with their intervals."""
    if not points:
        return
    mean = np.array([point.rate.mean for point in points])
    bars = np.abs(np.array([point.rate.interval for point in points]).T - mean)
    axes.errorbar([point.steps for point in points], mean, yerr=bars, capsize=3, **style)
