"""A run on one HTML page: result, curves, success per task over time, film, settings. Nothing is fetched."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from vla_gym.errors import BadValue
from zoo.config.hyperparams import packaged_entry
from zoo.config.run_config import RunConfig
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
from zoo.runs.line_chart import Line, line_chart

_WINDOW = 50
_BINS = 20
_MOST_FILM = 16 * 2**20
"""Bytes; a larger film is linked instead of enclosed."""

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

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#1f2328}
h1{font-size:1.5em;margin-bottom:.2em}h2{font-size:1.15em;margin-top:2em;border-bottom:1px solid #d0d7de}
.big{font-size:2.2em;font-weight:600}.muted,.title,.x,.y,.key{color:#59636e;fill:#59636e}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(420px,1fr));gap:1em}
svg{width:100%;max-width:640px;font:11px system-ui,sans-serif}.grid{stroke:#d8dee4}.y{text-anchor:end}
.title{font-size:13px;fill:#1f2328}
table{border-collapse:collapse;font-size:.9em}td,th{padding:.15em .8em .15em 0;text-align:left;vertical-align:top}
.heat td{padding:0;width:24px;height:16px;border:1px solid #fff}.heat th{font-weight:400;padding-right:.6em}
pre{background:#f6f8fa;padding:.8em;overflow-x:auto}video{max-width:100%}
"""


def run_page(run: RunFolder) -> str:
    """The page as HTML text; raises `BadValue` when `run` lacks its configuration or its `monitor.csv`."""
    config, episodes = run.config(), read_episodes(run)
    protocol = _json(run.path / PROTOCOL_FILE)
    points = read_evaluations(run)
    evaluation = _json(run.path / EVALUATION_FILE)
    if points and evaluation and evaluation.get("num_timesteps", points[-1].steps) < points[-1].steps:
        evaluation = {}  # of the end before the run went on
    tasks = [str(task["name"]) for task in protocol.get("tasks", ())]
    body = [
        f"<h1>{_text(config.algo.upper())} on {_text(config.env)} with {_text(config.policy)}</h1>",
        _headline(evaluation, points, episodes),
        "<h2>Success while training</h2>",
        _success_chart(points, episodes),
        _heat_map(episodes, tasks),
        _evaluation_table(evaluation),
        _film(run),
        "<h2>Health of the updates</h2>",
        _charts(run),
        "<h2>How it was made</h2>",
        _settings(config),
        f"<pre>{_text(_read(run.path / COMMAND_FILE))}</pre>",
        f"<details><summary>Protocol</summary><pre>{_text(json.dumps(protocol, indent=1))}</pre></details>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{_text(run.path.name)}</title><style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
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


def _headline(evaluation: Mapping[str, Any], points: Sequence[EvaluationPoint], episodes: Episodes) -> str:
    """Of the evaluation at the end; of a run that has not ended, of its newest."""
    if evaluation:
        return _big(evaluation["success"], evaluation["summary"])
    if points:
        newest = points[-1]
        return _big(rate_values(newest.rate), f"evaluated after {newest.steps} simulator steps")
    return f"<p>{len(episodes.steps)} training episodes; the run was not evaluated.</p>"


def _big(rate: Mapping[str, Any], note: str) -> str:
    return (
        f'<p><span class="big">{rate["success"]:.1%}</span> success, 95 % interval '
        f"[{rate['low']:.1%}, {rate['high']:.1%}], {rate['successes']} of {rate['episodes']} episodes<br>"
        f'<span class="muted">{_text(note)}</span></p>'
    )


def _success_chart(points: Sequence[EvaluationPoint], episodes: Episodes) -> str:
    lines = [
        Line(
            label=f"training, mean of {_WINDOW}",
            x=episodes.steps.tolist(),
            y=moving_mean(episodes.success, _WINDOW).tolist(),
        )
    ]
    if points:
        lines.append(
            Line(
                label="evaluation",
                x=[point.steps for point in points],
                y=[point.rate.mean for point in points],
                interval=[point.rate.interval for point in points],
            )
        )
    return line_chart("success over simulator steps", lines, y_range=(0.0, 1.0))


def _charts(run: RunFolder) -> str:
    metrics = read_metrics(run)
    charts = []
    for title, key, y_range in CHARTS:
        # An evaluation has a line of its own at the step of the update before it.
        points = [(line["step"], line[key]) for line in metrics if line.get(key) is not None]
        seen = {step: value for step, value in points if step is not None and value is not None}
        if seen:
            curve = Line(label=title, x=list(seen), y=list(seen.values()))
            charts.append(f"<div>{line_chart(title, [curve], y_range=y_range)}</div>")
    return f'<div class="charts">{"".join(charts)}</div>'


def _heat_map(episodes: Episodes, tasks: Sequence[str]) -> str:
    if len(tasks) < 2 or not len(episodes.steps):
        return ""
    share = success_per_task(episodes, len(tasks), _BINS)
    rows = []
    for name, row in zip(tasks, share, strict=True):
        if np.isnan(row).all():
            continue
        cells = "".join(
            "<td></td>" if np.isnan(one) else f'<td style="background:{_shade(one)}" title="{one:.0%}"></td>'
            for one in row
        )
        rows.append(f"<tr><th>{_text(name)}</th>{cells}</tr>")
    return (
        '<p class="muted">Solved training episodes per task over the run, light 0 % to dark 100 %; blank: none '
        f'ended</p><table class="heat">{"".join(rows)}</table>'
    )


def _evaluation_table(evaluation: Mapping[str, Any]) -> str:
    if not evaluation:
        return ""
    rows = []
    for task in evaluation["tasks"]:
        rate = Rate(label=task["name"], successes=task["successes"], episodes=task["episodes"])
        low, high = rate.interval
        rows.append(
            f"<tr><td>{rate.mean:.1%}</td><td>[{low:.1%}, {high:.1%}]</td>"
            f"<td>{rate.successes}/{rate.episodes}</td><td>{_text(rate.label)}</td></tr>"
        )
    head = "<tr><th>success</th><th>95 % interval</th><th>k/n</th><th>task</th></tr>"
    return f"<h2>Last evaluation</h2><table>{head}{''.join(rows)}</table>"


def _film(run: RunFolder) -> str:
    films = run.own_videos()
    if not films:
        return ""
    film = films[-1]
    source = f"videos/{film.name}"
    if film.stat().st_size <= _MOST_FILM:
        source = f"data:video/mp4;base64,{base64.b64encode(film.read_bytes()).decode()}"
    return f'<h2>Film</h2><video controls loop src="{source}"></video>'


def _settings(config: RunConfig) -> str:
    """The settings; what differs from the packaged recipe says so."""
    recipe = packaged_entry(config.algo, config.entry)
    usual = {} if recipe is None else recipe.values
    rows = []
    for key, value in {**config.env_options, **config.algo_kwargs}.items():
        differs = key in usual and usual[key] != value
        note = f' <span class="muted">(recipe: {_text(_yaml(usual[key]))})</span>' if differs else ""
        rows.append(f"<tr><td>{_text(key)}</td><td>{_text(_yaml(value))}{note}</td></tr>")
    source = "" if recipe is None else f"Recipe {_text(recipe.entry)}: {_text(recipe.source)}. "
    return f"<p>{source}{config.num_envs} environments, seed {config.seed}.</p><table>{''.join(rows)}</table>"


def _shade(share: float) -> str:
    """White-blue for 0 to dark blue for 1."""
    light, dark = (221, 235, 250), (10, 60, 130)
    return "rgb({},{},{})".format(*(round(a + share * (b - a)) for a, b in zip(light, dark, strict=True)))


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _text(value: object) -> str:
    return html.escape(str(value))
