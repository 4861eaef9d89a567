"""A run on one HTML page: result, curves, success per task over time, video, settings. Nothing is fetched."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from vla_gym.errors import BadValue
from zoo.config.hyperparams import packaged_entry
from zoo.evaluation.statistics import Rate, rate_values
from zoo.files import read_json
from zoo.runs.curves import (
    Episodes,
    EvaluationPoint,
    moving_mean,
    read_episodes,
    read_evaluations,
    read_metrics,
)
from zoo.runs.folder import COMMAND_FILE, EVALUATION_FILE, PROTOCOL_FILE, REPORT_FILE, RunFolder

_WINDOW = 50
_BINS = 20
_MOST_VIDEO = 16 * 2**20
"""Bytes; a larger video is linked instead of enclosed."""

CHARTS: tuple[tuple[str, str, tuple[float, float] | None], ...] = (
    ("return of an episode", "env/return", None),
    ("length of an episode (simulator steps)", "env/episode_len", None),
    ("KL of an update", "train/actor/approx_kl", None),
    ("clipped share", "train/actor/clip_fraction", None),
    ("entropy (nats)", "train/actor/entropy", None),
    ("gradient norm", "train/actor/grad_norm", None),
    ("value explained", "train/critic/explained_variance", None),
    ("groups kept", "rollout/groups_kept", (0.0, 1.0)),
    ("simulator steps per second", "time/sim_steps_per_second", None),
)
"""Title, metric and range of the charts below the success curve; one without numbers is left out."""


def run_page(run: RunFolder) -> str:
    """The page as HTML text; raises `BadValue` when `run` lacks its configuration or its `monitor.csv`."""
    config, episodes = run.config(), read_episodes(run)
    protocol, evaluation = (_record(run.path / name) for name in (PROTOCOL_FILE, EVALUATION_FILE))
    points = read_evaluations(run)
    if points and evaluation and evaluation.get("num_timesteps", points[-1].steps) < points[-1].steps:
        evaluation = {}  # of the end before the run went on
    headline, note = evaluation.get("success"), evaluation.get("summary", "")
    if not evaluation and points:  # of a run that has not ended, its newest
        headline, note = rate_values(points[-1].rate), f"evaluated after {points[-1].steps} simulator steps"
    command = run.path / COMMAND_FILE
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {"percent": "{:.1%}".format, "yaml": _yaml}
    template = environment.from_string(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
    return template.render(
        name=run.path.name,
        config=config,
        headline=headline,
        note=note,
        num_episodes=len(episodes.steps),
        success_chart=_success_chart(points, episodes),
        task_chart=_task_chart(episodes, [str(task["name"]) for task in protocol.get("tasks", ())]),
        evaluated_tasks=[
            Rate(label=task["name"], successes=task["successes"], episodes=task["episodes"])
            for task in evaluation.get("tasks", ())
        ],
        video=_video(run),
        health_charts=_health_charts(run),
        recipe=packaged_entry(config.algo, config.entry),
        settings={**config.env_options, **config.algo_kwargs},
        command=command.read_text(encoding="utf-8") if command.is_file() else "",
        protocol=json.dumps(protocol, indent=1),
    )


def write_run_page(run: RunFolder, output: Path | None = None) -> Path:
    """Write the page to `output`, by default `report.html` in the run folder; returns where it is.

    Raises `BadValue` for a file that cannot be written, and what `run_page` raises.
    """
    path = run.path / REPORT_FILE if output is None else output
    page = run_page(run)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise BadValue(f"cannot write '{path}': {error.strerror}") from error
    return path


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


def _success_chart(points: Sequence[EvaluationPoint], episodes: Episodes) -> str:
    figure = _figure(6.4, 3.0, layout="constrained")
    axes = figure.subplots()
    success_E = moving_mean(episodes.success, _WINDOW)
    axes.plot(episodes.steps, success_E, label=f"training, mean of {_WINDOW}")
    if points:
        ends = np.array([point.rate.interval for point in points]).T
        mean = np.array([point.rate.mean for point in points])
        steps = [point.steps for point in points]
        axes.errorbar(steps, mean, yerr=np.abs(ends - mean), fmt="o", capsize=3, label="evaluation")
    axes.set(title="success over simulator steps", ylim=(-0.02, 1.02))
    axes.legend()
    axes.grid(alpha=0.3)
    return _svg(figure)


def _health_charts(run: RunFolder) -> str:
    metrics = read_metrics(run)
    curves = []
    for title, key, y_range in CHARTS:
        # An evaluation has a line of its own at the step of the update before it.
        points = {line["step"]: line[key] for line in metrics if line.get(key) is not None}
        if points:
            curves.append((title, points, y_range))
    rows = -(-len(curves) // 2)
    if not rows:
        return ""
    figure = _figure(9.0, 2.4 * rows)
    panels = figure.subplots(rows, 2, squeeze=False).ravel()
    # By hand: matplotlib's own layouts of as many panels take a second.
    figure.subplots_adjust(0.1, 0.3 / rows / 2.4, 0.98, 1 - 0.3 / rows / 2.4, wspace=0.25, hspace=0.4)
    for axes in panels[len(curves) :]:
        axes.set_axis_off()
    for axes, (title, points, y_range) in zip(panels, curves, strict=False):
        axes.plot(list(points), list(points.values()))
        axes.set(title=title, ylim=y_range)
        axes.grid(alpha=0.3)
    return _svg(figure)


def _task_chart(episodes: Episodes, tasks: Sequence[str]) -> str:
    if len(tasks) < 2 or not len(episodes.steps):
        return ""
    share = success_per_task(episodes, len(tasks), _BINS)
    tried = ~np.isnan(share).all(axis=1)
    figure = _figure(9.0, 0.6 + 0.2 * tried.sum(), layout="constrained")
    axes = figure.subplots()
    axes.imshow(share[tried], cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="none")
    names = [name for name, was_tried in zip(tasks, tried, strict=True) if was_tried]
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_xticks([])
    return _svg(figure)


def _figure(width: float, height: float, **options: Any) -> Any:
    from matplotlib.figure import Figure  # only the process that writes the page pays for it

    return Figure(figsize=(width, height), **options)


def _svg(figure: Any) -> Markup:
    """The figure as an element of the page, the same for the same numbers."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "vla-zoo"}):
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    element = text.getvalue()[text.getvalue().index("<svg") :]
    # HTML knows both namespaces by itself.
    return Markup(re.sub(r' xmlns(:xlink)?="[^"]*"', "", element))  # noqa: S704 - matplotlib escapes its texts


def _video(run: RunFolder) -> str:
    """Address of the run's newest own video, in the page itself where it is small; "" without one."""
    videos = run.own_videos()
    if not videos:
        return ""
    if videos[-1].stat().st_size <= _MOST_VIDEO:
        return f"data:video/mp4;base64,{base64.b64encode(videos[-1].read_bytes()).decode()}"
    return f"{run.videos.name}/{videos[-1].name}"


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()


def _record(path: Path) -> Mapping[str, Any]:
    return read_json(path) if path.is_file() else {}
