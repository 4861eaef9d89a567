"""Outputs of a run's logger: a table on the screen with success first, `metrics.jsonl`, TensorBoard, a tracker.

Each is a `KVWriter` of Stable-Baselines3's logger, so callbacks and algorithms only ever `record`. Trackers
(`--track wandb|swanlab`) are Accelerate's: one that cannot start is named before the run begins, a later failure
never ends a run. Their own environment variables (WANDB_PROJECT, WANDB_MODE, ...) set projects, teams and modes.
"""

from __future__ import annotations

import json
import logging
import math
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.logger import KVWriter, SeqWriter, TensorBoardOutputFormat
from torch.utils.tensorboard import SummaryWriter

from vla_gym.errors import BadValue, MissingDependency, unknown_name
from zoo.config.run_config import RunConfig, to_plain
from zoo.files import write_text
from zoo.runs.curves import read_rows
from zoo.runs.folder import METRICS_FILE, TRACKER_ID_FILE, RunFolder

_logger = logging.getLogger(__name__)

PROJECT = "vla-zoo"
"""Project of a tracker, unless its environment variable names another."""
TRACKERS: Mapping[str, str] = {"wandb": "WANDB_PROJECT", "swanlab": "SWANLAB_PROJ_NAME"}
"""Tracker -> environment variable that names the project."""
_FIRST = (
    ("success", "rollout/success_once", ".1%"),
    ("return", "env/return", ".3f"),
    ("length", "env/episode_len", ".0f"),
)
_ACTOR = (
    ("kl", "train/actor/approx_kl", ".1e"),
    ("clip", "train/actor/clip_fraction", ".1%"),
    ("entropy", "train/actor/entropy", ".2f"),
)
_CRITIC = (
    ("value", "train/critic/value_loss", ".1e"),
    ("expl var", "train/critic/explained_variance", ".2g"),
)
_GROUPS = (("groups", "rollout/groups_kept", ".0%"),)
_LAST = (("steps/s", "time/sim_steps_per_second", ".0f"),)

COLUMNS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "ppo": _FIRST + _ACTOR + _CRITIC + _LAST,
    "grpo": _FIRST + _GROUPS + _ACTOR + _LAST,
}
"""Algorithm -> heading, key and format of each column of the screen's table."""
_WIDTH = 9
_ROWS_PER_HEADING = 20


class ScreenTable(KVWriter, SeqWriter):
    """One row per update, headings every 20 rows; a number that an update does not have stays blank."""

    def __init__(self, algo: str) -> None:
        self._columns = COLUMNS[algo]
        self._rows = 0

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Print a row if the update has metrics of training."""
        if not any(key.startswith("train/") for key in key_values):
            return
        if self._rows % _ROWS_PER_HEADING == 0:
            _logger.info(" ".join([f"{'steps':>10}", *(f"{name:>{_WIDTH}}" for name, _, _ in self._columns)]))
        self._rows += 1
        cells = [f"{_cell(key_values.get(key), form):>{_WIDTH}}" for _, key, form in self._columns]
        _logger.info(" ".join([f"{step:>10}", *cells]).rstrip())

    def write_sequence(self, sequence: Sequence[str]) -> None:
        """Print a line of `logger.info`."""
        _logger.info(" ".join(sequence))

    def close(self) -> None:
        """Nothing to close."""


class JsonLines(KVWriter):
    """Appends one object per dump to `metrics.jsonl`: `step` and every number; NaN becomes null."""

    def __init__(self, folder: Path, *, keep_until: int | None = None) -> None:
        """Open for appending; with `keep_until`, lines past that many simulator steps are dropped first."""
        path = folder / METRICS_FILE
        kept = _lines_until(path, keep_until) if keep_until is not None and path.is_file() else []
        write_text(path, "".join(line + "\n" for line in kept))
        # Line buffering: a run that is killed keeps every line.
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Write one line."""
        self._file.write(json.dumps({"step": step, **plain_numbers(key_values)}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard(TensorBoardOutputFormat):
    """SB3's writer; a resumed run hides the events past its checkpoint."""

    def __init__(self, folder: Path, *, keep_until: int | None = None) -> None:
        purge_step = None if keep_until is None else keep_until + 1
        self.writer = SummaryWriter(log_dir=str(folder), purge_step=purge_step)
        self._is_closed = False


class TrackerWriter(KVWriter):
    """Hands every dump of the logger to a tracker; the first failure is logged, and ends only the tracking."""

    def __init__(self, tracker: Any) -> None:
        self._tracker: Any | None = tracker

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Log the numbers of one update at its simulator step."""
        numbers = {key: value for key, value in plain_numbers(key_values).items() if value is not None}
        self._guarded(lambda tracker: tracker.log(numbers, step=step))

    def close(self) -> None:
        """Finish the tracker's run."""
        self._guarded(lambda tracker: tracker.finish())
        self._tracker = None

    def _guarded(self, call: Callable[[Any], None]) -> None:
        if self._tracker is None:
            return
        try:
            call(self._tracker)
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises, training goes on
            _logger.warning("warning: %s is given up, the run goes on: %s", self._tracker.name, one_line(error))
            self._tracker = None


def check_tracker(name: str) -> None:
    """Raise `UnknownName` for another tracker, `MissingDependency` for one that is not installed."""
    if name not in TRACKERS:
        raise unknown_name("tracker", name, TRACKERS)
    if find_spec(name) is None:
        raise MissingDependency(f"--track {name} needs {name}, not installed here. Install with: pip install {name}")


def start_tracker(name: str, run: RunFolder, config: RunConfig) -> TrackerWriter:
    """Begin (or, for a run folder that goes on, resume) the tracker's run; files of it lie in the run folder.

    Raises `BadValue` when the tracker refuses, for instance without a login.
    """
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState()  # its trackers ask it which process they are in

    title = f"{config.algo}/{run.path.name}"
    places: Mapping[str, Mapping[str, str]] = {
        "wandb": {"dir": str(run.path), "name": title},
        "swanlab": {"logdir": str(run.path / "swanlab"), "experiment_name": title},
    }
    project = os.environ.get(TRACKERS[name], PROJECT)
    tracker = LOGGER_TYPE_TO_CLASS[name](project, id=_run_id(run), resume="allow", **places[name])
    try:
        tracker.start()
        tracker.store_init_configuration(to_plain(config))
    except Exception as error:
        raise BadValue(
            f"--track {name}: it does not start: {one_line(error)}. Log in ({name} login), set its "
            f"offline mode ({name.upper()}_MODE=offline), or leave --track away"
        ) from error
    return TrackerWriter(tracker)


def one_line(error: Exception) -> str:
    """The error's text, without line breaks or the full stop."""
    return " ".join(str(error).split()).rstrip(".")


def _run_id(run: RunFolder) -> str:
    """The tracker's name of this run, drawn once: 21 lower-case letters and digits, as both trackers take."""
    path = run.path / TRACKER_ID_FILE
    if not path.is_file():
        path.write_text(uuid.uuid4().hex[:21], encoding="utf-8")
    return path.read_text(encoding="utf-8")


def plain_numbers(values: Mapping[str, Any]) -> dict[str, float | int | None]:
    """The scalar numbers of `values` as JSON values, sorted by key; anything else is left out."""
    numbers: dict[str, float | int | None] = {}
    for key in sorted(values):
        value = values[key]
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, bool | int):
            numbers[key] = int(value)
        elif isinstance(value, float):
            numbers[key] = value if math.isfinite(value) else None
    return numbers


def _lines_until(path: Path, step: int) -> list[str]:
    return [line for line, row in read_rows(path) if row["step"] <= step]


def _cell(value: Any, form: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return format(float(value), form)
