"""`monitor.csv` and `evaluations.npz`, written and read, in the formats of SB3's `Monitor` and `EvalCallback`.

`metrics.jsonl` is read here and written by `zoo.runs.loggers`.

rl_zoo3's plot commands read both unchanged. Two columns are added: `task_id` and `num_timesteps`, by which a resumed
run knows the rows that it keeps. Its seconds `t` go on from the last of these rows: the time between a stop and the
resume does not count. Shape letter E: episodes.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from vla_gym.errors import BadValue, shown
from vla_gym.reading import MOST_BYTES, check_no_pipe, parse_json, read_text
from zoo.config.settings import LARGEST_COUNT
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.evaluation.statistics import Rate, rate_of_rounds
from zoo.files import atomic_file, content_of, damaged, write_text
from zoo.runs.folder import CONFIG_FILE, EVALUATIONS_FILE, METRICS_FILE, MONITOR_FILE, RunFolder

_COLUMNS = ("r", "l", "t", "is_success", "task_id", "num_timesteps")
_ARRAYS = ("timesteps", "results", "ep_lengths", "successes")


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """The finished training episodes of one run, in the order they ended; one entry each, float64 or int64 `[E]`."""

    steps: np.ndarray
    """Simulator steps of the whole run when it ended."""
    seconds: np.ndarray
    """Seconds since the run began, without those between a stop and its resume."""
    success: np.ndarray
    """1: solved at any step."""
    reward: np.ndarray
    length: np.ndarray
    """Simulator steps of the episode."""
    task_id: np.ndarray


class MonitorFile:
    """Appends episodes to `monitor.csv`; the header's start time survives a resume."""

    def __init__(self, folder: Path, env_id: str, *, keep_until: int | None = None) -> None:
        """Open for appending; with `keep_until`, rows past that many simulator steps are dropped first."""
        path = folder / MONITOR_FILE
        self.tasks: set[int] = set()
        """Tasks of the run's episodes."""
        began, seconds, rows = time.time(), 0.0, list[list[str]]()
        if keep_until is not None and path.is_file():
            began, rows = _read(path)
            with content_of(path):
                rows = [row for row in rows if int(row[-1]) <= keep_until]
                self.tasks = {int(row[_COLUMNS.index("task_id")]) for row in rows}
                seconds = float(rows[-1][_COLUMNS.index("t")]) if rows else 0.0
        self._zero = time.monotonic() - seconds
        kept = io.StringIO(newline="")
        kept.write(f"#{json.dumps({'t_start': began, 'env_id': env_id})}\n")
        csv.writer(kept).writerows([_COLUMNS, *rows])
        write_text(path, kept.getvalue())
        # Line buffering: a run that is killed keeps every finished episode.
        self._file = path.open("a", newline="", buffering=1, encoding="utf-8")
        self._writer = csv.writer(self._file)

    def add(self, episode: EpisodeRecord, num_timesteps: int) -> None:
        """Write one episode that ended when the whole run had done `num_timesteps` simulator steps."""
        self.tasks.add(episode.task_id)
        seconds = round(time.monotonic() - self._zero, 6)
        row = (round(episode.total_reward, 6), episode.length, seconds, int(episode.success_once))
        self._writer.writerow((*row, episode.task_id, num_timesteps))

    def close(self) -> None:
        self._file.close()


def _read(path: Path) -> tuple[float, list[list[str]]]:
    try:
        head, *table = monitor_lines(path)
        began = float(parse_json(head.lstrip("#"), path)["t_start"])
    except (ValueError, KeyError, TypeError) as error:  # BadValue is a ValueError
        raise damaged(path, f"its first line must say when the run began ({error})") from error
    return began, [row for row in csv.reader(table) if row and row[-1].isdecimal()]


def monitor_lines(path: Path) -> list[str]:
    """Return the lines of a `monitor.csv`, without one cut short by a kill at the end."""
    text = read_text(path)
    return text[: text.rfind("\n") + 1].splitlines() or [""]


def read_episodes(run: RunFolder) -> Episodes:
    """Read `monitor.csv`; raises `BadValue` when it is missing, damaged or not of this project."""
    path = run.path / MONITOR_FILE
    rows = list(csv.DictReader(monitor_lines(path)[1:]))

    def column(name: str, kind: type[np.generic], high: float = LARGEST_COUNT, *, signed: bool = False) -> np.ndarray:
        try:
            value_E = np.array([float(row[name]) for row in rows])
        except (KeyError, TypeError, ValueError) as error:
            raise BadValue(f"'{path}' has no column '{name}' of numbers in every row") from error
        if not (np.isfinite(value_E) & (value_E <= high) & (signed | (value_E >= 0))).all():
            raise damaged(path, f"its '{name}' must be in {'' if signed else '0 '}.. {high:g}")
        return value_E.astype(kind)

    return Episodes(
        steps=column("num_timesteps", np.int64),
        seconds=column("t", np.float64, np.inf, signed=True),
        success=column("is_success", np.float64, 1),
        reward=column("r", np.float64, np.inf, signed=True),
        length=column("l", np.float64),
        task_id=column("task_id", np.int64),
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationPoint:
    """One evaluation during training."""

    steps: int
    """Simulator steps of the run."""
    rate: Rate
    """Successes of its episodes."""


def read_evaluations(run: RunFolder) -> list[EvaluationPoint]:
    """Read `evaluations.npz`; empty when the run was never evaluated, `BadValue` when the file is broken."""
    path = run.path / EVALUATIONS_FILE
    if not path.is_file():
        return []
    arrays = read_evaluation_arrays(path)
    rounds = run.config().evaluation.rounds if (run.path / CONFIG_FILE).is_file() else 1
    with content_of(path):
        return [
            EvaluationPoint(steps=int(steps), rate=rate_of_rounds("evaluation", success_E, rounds))
            for steps, success_E in zip(arrays["timesteps"], arrays["successes"], strict=True)
        ]


def read_evaluation_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an `EvaluationFile`; raises `BadValue` where they cannot be read."""
    check_no_pipe(path)
    try:
        with content_of(path), path.open("rb") as opened:
            # A downloaded file may unpack to any size.
            size = sum(member.file_size for member in ZipFile(opened).infolist())
            if size > MOST_BYTES:
                raise damaged(path, f"it unpacks to {size} bytes, at most {MOST_BYTES} are read")
            opened.seek(0)
            with np.load(opened) as file:
                arrays = {name: file[name] for name in _ARRAYS}
    except (EOFError, BadZipFile) as error:
        raise damaged(path, error) from error
    if (
        len({array.shape[:1] for array in arrays.values()}) > 1
        or [array.ndim for array in arrays.values()] != [1, 2, 2, 2]
        or any(array.dtype.kind not in "biuf" for array in arrays.values())
        or not arrays["successes"].shape[1]
    ):
        raise damaged(path, "its arrays must be numbers, [evaluations] and [evaluations, episodes]")
    for name, high in (("timesteps", LARGEST_COUNT), ("successes", 1)):
        if not ((arrays[name] >= 0) & (arrays[name] <= high)).all():
            raise damaged(path, f"its '{name}' must be in 0 .. {high}")
    return arrays


def lacks_evaluation(run: RunFolder, step: int) -> bool:
    """Whether the run is to be evaluated and was not at `step`; raises `BadValue` for a damaged `evaluations.npz`."""
    if not run.config().eval_episodes:
        return False
    path = run.path / EVALUATIONS_FILE
    return not path.is_file() or step not in read_evaluation_arrays(path)["timesteps"]


class EvaluationFile:
    """Grows `evaluations.npz`: `timesteps [E]`, `results`, `ep_lengths` and `successes` `[E, episodes]`."""

    def __init__(self, folder: Path, *, keep_until: int | None = None) -> None:
        """With `keep_until`, evaluations past that many simulator steps are dropped from the file that is there."""
        self._path = folder / EVALUATIONS_FILE
        self._rows: dict[str, list[Any]] = {name: [] for name in _ARRAYS}
        if keep_until is not None and self._path.is_file():
            old = read_evaluation_arrays(self._path)
            kept = old["timesteps"] <= keep_until
            self._rows = {name: list(array[kept]) for name, array in old.items()}

    @property
    def timesteps(self) -> list[int]:
        """Simulator steps of each evaluation."""
        return [int(steps) for steps in self._rows["timesteps"]]

    def add(
        self, num_timesteps: int, results: Sequence[float], lengths: Sequence[int], successes: Sequence[bool]
    ) -> None:
        """Append one evaluation of as many episodes as the ones before, and write the file anew."""
        row = zip((num_timesteps, results, lengths, successes), (int, float, int, bool), strict=True)
        for name, (values, kind) in zip(_ARRAYS, row, strict=True):
            self._rows[name].append(np.asarray(values, dtype=kind))
        arrays: dict[str, Any] = {name: np.stack(rows) for name, rows in self._rows.items()}
        with atomic_file(self._path) as partial, partial.open("wb") as file:
            np.savez(file, **arrays)


def read_metrics(run: RunFolder) -> list[Mapping[str, float | None]]:
    """Return the lines of `metrics.jsonl`, one per update, None for what was not a number; empty without the file.

    Raises `BadValue` for a damaged file.
    """
    path = run.path / METRICS_FILE
    rows: list[Mapping[str, Any]] = [row for _, row in read_rows(path)] if path.is_file() else []
    for name, value in (item for row in rows for item in row.items()):
        if value is not None and not (isinstance(value, int | float) and abs(value) <= sys.float_info.max):
            raise damaged(path, f"its '{name}' must be a number or null, got {shown(value)}")
    return rows


def read_rows(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return every line of a `metrics.jsonl`, as text and as its values; raises `BadValue` for another file."""
    lines = [line for line in read_text(path).splitlines() if line.strip()]
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_json(line, f"{path}, line {number}")
        except BadValue as error:
            if number == len(lines):
                break  # a kill can leave half a line at the end
            raise damaged(path, error) from error
        step = row.get("step") if isinstance(row, dict) else None
        if not isinstance(step, int) or not 0 <= step <= LARGEST_COUNT:
            raise damaged(path, f"line {number} does not say its step, in 0 .. {LARGEST_COUNT}")
        rows.append((line, row))
    return rows
