"""Outputs of a run's logger: a table on the screen with success first, `metrics.jsonl`, TensorBoard.

Each is a `KVWriter` of Stable-Baselines3's logger, so callbacks and algorithms only ever `record`.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.logger import KVWriter, Logger, SeqWriter, TensorBoardOutputFormat
from torch.utils.tensorboard import SummaryWriter

from zoo.files import write_text
from zoo.runs.curves import read_rows
from zoo.runs.folder import METRICS_FILE

_logger = logging.getLogger(__name__)

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


class RunLogger(Logger):
    """A run's logger; `on_error` takes the error of a file that cannot be written, in the midst of an update."""

    def __init__(self, folder: Path, writers: list[KVWriter], *, on_error: Callable[[OSError], None]) -> None:
        super().__init__(folder=str(folder), output_formats=writers)
        self._on_error = on_error

    def dump(self, step: int = 0) -> None:
        """Write what was recorded."""
        try:
            super().dump(step)
        except OSError as error:
            self._on_error(error)


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
