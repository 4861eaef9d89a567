"""A run on one HTML page: result, curves, success per task over time, video, settings. Nothing is fetched."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from vla_gym.errors import BadValue, VLAZooError, os_reason
from vla_gym.reading import read_text
from zoo.config.advice import NO_SIGNAL_ADVICE
from zoo.config.hyperparams import packaged_entry
from zoo.config.settings import yaml_line
from zoo.evaluation.statistics import Rate
from zoo.files import content_of, damaged, read_json, write_text
from zoo.runs.charts import CHARTS, SFT_CHARTS, metric_charts, success_chart, task_chart
from zoo.runs.folder import COMMAND_FILE, EVALUATION_FILE, MONITOR_FILE, PROTOCOL_FILE, REPORT_FILE, RunFolder
from zoo.runs.loggers import read_metrics
from zoo.runs.monitor import Episodes, EvaluationPoint, read_episodes, read_evaluations

_logger = logging.getLogger(__name__)
_MOST_VIDEO = 16 * 2**20
"""Bytes; a larger video is linked instead of enclosed."""


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
        charts=metric_charts(metrics, SFT_CHARTS if finetuned else CHARTS),
        unit=unit,
        duration=timedelta(seconds=round(sum(line.get("time/iteration_seconds") or 0.0 for line in metrics))),
        machine="; ".join(str(protocol[name]) for name in ("machine", "launch") if protocol.get(name)),
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
    """All episodes."""
    tasks: Sequence[Rate] = ()
    """Task by task, where that is known."""
    note: str
    """How it was made."""


def _result(run: RunFolder, points: Sequence[EvaluationPoint], unit: str) -> _Result | None:
    """Return the run's last evaluation; of one that has not ended, the newest of `points`."""
    path = run.path / EVALUATION_FILE
    record = read_json(path) if path.is_file() else {}
    with content_of(path):
        # Another one is of the end before the run went on.
        if record and (not points or record.get("num_timesteps", points[-1].steps) >= points[-1].steps):
            tasks = [_rate(task) for task in record.get("tasks", ())]
            return _Result(rate=_rate(record["success"]), tasks=tasks, note=record.get("summary", ""))
    if not points:
        return None
    return _Result(rate=points[-1].rate, note=f"evaluated after {points[-1].steps} {unit}")


def _rate(values: Mapping[str, Any]) -> Rate:
    """Return the rate that `rate_values` wrote; raises for values that are none."""
    rate = Rate(
        label=str(values["name"]),
        successes=values["successes"],
        episodes=values["episodes"],
        start_states=values.get("start_states"),
        effective=values.get("effective"),
    )
    _ = rate.interval  # raises
    return rate


def _protocol(run: RunFolder, episodes: Episodes | None) -> tuple[Mapping[str, Any], list[str]]:
    """Return the run's protocol and the names of its tasks, which the `episodes` are of."""
    path = run.path / PROTOCOL_FILE
    protocol = read_json(path) if path.is_file() else {}
    with content_of(path):
        tasks = [str(task["name"]) for task in protocol.get("tasks", ())]
    if episodes is not None and tasks and (last := episodes.task_id.max(initial=0)) >= len(tasks):
        raise damaged(run.path / MONITOR_FILE, f"its task_id must be in 0 .. {len(tasks) - 1}, got {last}")
    return protocol, tasks


def _never_succeeded(result: _Result | None, episodes: Episodes | None) -> bool:
    """Whether episodes were played and none of them was solved."""
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
