"""Training episodes, evaluations and metrics of a run over time, from its files. Shape letter E: episodes."""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vla_gym.errors import BadValue, shown
from vla_gym.reading import parse_json, read_text
from zoo.config.settings import LARGEST_COUNT
from zoo.evaluation.statistics import Rate, rate_of_rounds, together
from zoo.files import content_of, damaged
from zoo.runs.folder import CONFIG_FILE, EVALUATIONS_FILE, METRICS_FILE, MONITOR_FILE, RunFolder
from zoo.runs.monitor import monitor_lines, read_evaluation_arrays


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """The finished training episodes of one run, in the order they ended; one entry each, `[E]`."""

    steps: np.ndarray
    """Simulator steps of the whole run when it ended, int64."""
    seconds: np.ndarray
    """Seconds since the run began, without those between a stop and its resume, float64."""
    success: np.ndarray
    """Solved at any step, 0 or 1, float64."""
    reward: np.ndarray
    """Sum of rewards, float64."""
    length: np.ndarray
    """Simulator steps of the episode, float64."""
    task_id: np.ndarray
    """Index into the benchmark's tasks, int64."""


@dataclass(frozen=True, kw_only=True)
class EvaluationPoint:
    """One evaluation during training."""

    steps: int
    """Simulator steps of the run."""
    rate: Rate
    """Successes of its episodes."""
    runs: int = 1
    """Runs whose episodes they are."""


def read_episodes(run: RunFolder) -> Episodes:
    """From `monitor.csv`; raises `BadValue` when it is missing, damaged or not of this project."""
    path = run.path / MONITOR_FILE
    reader = csv.DictReader(monitor_lines(path)[1:])
    rows, names = list(reader), reader.fieldnames or ()

    def column(name: str, kind: type[np.generic], *, low: float = 0, high: float = LARGEST_COUNT) -> np.ndarray:
        wrong = f"'{path}' has no column '{name}' of numbers in every row"
        if name not in names:
            raise BadValue(wrong)
        try:
            value_E = np.array([float(row[name]) for row in rows])
        except (TypeError, ValueError) as error:
            raise BadValue(wrong) from error
        if bad := value_E[~((value_E >= low) & (value_E <= high))].tolist():
            raise damaged(path, f"its '{name}' must be in {low:g} .. {high:g}, got {bad[0]:g}")
        return value_E.astype(kind)

    largest = sys.float_info.max
    return Episodes(
        steps=column("num_timesteps", np.int64),
        seconds=column("t", np.float64, low=-largest, high=largest),
        success=column("is_success", np.float64, high=1),
        reward=column("r", np.float64, low=-largest, high=largest),
        length=column("l", np.float64),
        task_id=column("task_id", np.int64),
    )


def read_evaluations(run: RunFolder) -> list[EvaluationPoint]:
    """From `evaluations.npz`; empty when the run was never evaluated, `BadValue` when the file is broken."""
    path = run.path / EVALUATIONS_FILE
    if not path.is_file():
        return []
    arrays, rounds = read_evaluation_arrays(path), rounds_of(run)
    with content_of(path):
        return [
            EvaluationPoint(steps=int(steps), rate=rate_of_rounds("evaluation", success_E, rounds))
            for steps, success_E in zip(arrays["timesteps"], arrays["successes"], strict=True)
        ]


def rounds_of(run: RunFolder) -> int:
    """Episodes of every start state in the run's evaluations; 1 in a folder without a configuration."""
    return run.config().evaluation.rounds if (run.path / CONFIG_FILE).is_file() else 1


def read_metrics(run: RunFolder) -> list[Mapping[str, float | None]]:
    """The lines of `metrics.jsonl`, one per update, None for what was not a number; empty when there are none.

    Raises `BadValue` for a damaged file.
    """
    path = run.path / METRICS_FILE
    if not path.is_file():
        return []
    rows: list[Mapping[str, Any]] = [row for _, row in read_rows(path)]
    for name, value in (item for row in rows for item in row.items()):
        if value is not None and not (isinstance(value, int | float) and abs(value) <= sys.float_info.max):
            raise damaged(path, f"its '{name}' must be a number or null, got {shown(value)}")
    return rows


def read_rows(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Every line of a `metrics.jsonl`, as text and as its values; raises `BadValue` for a file of another kind."""
    lines = [line for line in read_text(path).splitlines() if line.strip()]
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_json(line, f"{path}, line {number}")
        except BadValue as error:
            if number == len(lines):
                break  # a kill can leave half a line at the end
            raise damaged(path, error) from error
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise damaged(path, f"line {number} does not say its step")
        if not 0 <= row["step"] <= LARGEST_COUNT:
            raise damaged(path, f"the step of line {number} must be in 0 .. {LARGEST_COUNT}")
        rows.append((line, row))
    return rows


def moving_mean(value_E: np.ndarray, window: int) -> np.ndarray:
    """Mean of the last `window` entries up to and with each one, float64 `[E]`; nan before there are as many."""
    total_E = np.concatenate([[0.0], np.cumsum(value_E, dtype=np.float64)])
    mean_E = np.full(len(value_E), np.nan)
    mean_E[window - 1 :] = (total_E[window:] - total_E[:-window]) / window
    return mean_E


def training_curve(episodes: Episodes, value_E: np.ndarray, *, window: int, num_envs: int) -> np.ndarray:
    """Moving mean of a training run's episodes, float64 `[E]`; nan where it would flatter the run.

    The first episodes to end are the short ones, which are the solved ones. A mean is fair once every environment can
    have ended its first episode: after `num_envs` x the longest episode's steps. A run with fewer than two windows of
    episodes is averaged over half of them.
    """
    if not len(value_E):
        return np.empty(0)
    mean_E = moving_mean(value_E, min(window, max(1, len(value_E) // 2)))
    return np.where(episodes.steps >= num_envs * episodes.length.max(), mean_E, np.nan)


def at_points(x_E: np.ndarray, y_E: np.ndarray, point_P: np.ndarray) -> np.ndarray:
    """The latest y at or before each point, float64 `[P]`; nan before the first x and past the last, which ascend."""
    if not len(x_E):
        return point_P * np.nan
    index_P = np.searchsorted(x_E, point_P, side="right") - 1
    return np.where((index_P >= 0) & (point_P <= x_E[-1]), y_E[np.maximum(index_P, 0)], np.nan)


def pooled(evaluations: Sequence[Sequence[EvaluationPoint]]) -> list[EvaluationPoint]:
    """Evaluations of several runs at about the same steps counted together, at their mean step; ascending.

    A run is evaluated at its first update past a multiple of steps, which other runs reach some steps earlier or later.
    Counted together are evaluations of different runs that are no further apart than half the way to the next
    evaluation, or the one before, of either run.
    """
    placed = []
    for run, points in enumerate(evaluations):
        gaps = np.diff([0, *(point.steps for point in points), np.inf])
        placed += [_Placed(run, point, min(gaps[at : at + 2]) / 2) for at, point in enumerate(points)]
    groups: list[list[_Placed]] = []
    for one in sorted(placed, key=lambda one: one.point.steps):
        if groups and all(one.goes_with(other) for other in groups[-1]):
            groups[-1].append(one)
        else:
            groups.append([one])
    return [
        EvaluationPoint(
            steps=round(statistics.fmean(one.point.steps for one in group)),
            rate=together("evaluation", [one.point.rate for one in group]),
            runs=len(group),
        )
        for group in groups
    ]


@dataclass(frozen=True)
class _Placed:
    """An evaluation among those of several runs."""

    run: int
    point: EvaluationPoint
    reach: float
    """Half the steps to the run's nearest other evaluation."""

    def goes_with(self, other: _Placed) -> bool:
        """Whether both are the same evaluation of two runs."""
        apart = abs(self.point.steps - other.point.steps)
        return self.run != other.run and apart <= min(self.reach, other.reach)
