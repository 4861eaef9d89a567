"""Outputs of a run's logger: a table on the screen with success first, `metrics.jsonl`, TensorBoard, trackers.

Each is a `KVWriter` of Stable-Baselines3's logger, so callbacks and algorithms only ever `record`.
"""

from __future__ import annotations

import json
import logging
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.logger import KVWriter, SeqWriter, TensorBoardOutputFormat
from torch.utils.tensorboard import SummaryWriter

from vla_gym.errors import BadValue
from zoo.config.run_config import RunConfig, to_plain
from zoo.config.tracking import SERVICES, Tracking
from zoo.files import write_text
from zoo.runs.folder import METRICS_FILE, TRACKER_ID_FILE, RunFolder
from zoo.runs.monitor import read_rows

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
_CHUNKS = (("q", "train/critic/q_mean", ".2f"), ("td", "train/critic/td_loss", ".1e"))
_IMITATION = ("imitation", "train/actor/imitation_loss", ".2f")
_REPLAY = ("replay", "rollout/replay", ".0f")
_LAST = (("steps/s", "time/sim_steps_per_second", ".0f"),)

COLUMNS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "ppo": _FIRST + _ACTOR + _CRITIC + _LAST,
    "recap": (
        *_FIRST,
        ("value", "train/critic/value_loss", ".2f"),
        ("positive", "rollout/positive", ".0%"),
        *(_IMITATION, _REPLAY),
        *_LAST,
    ),
    "dsrl": (
        *_FIRST,
        *(("actor", "train/actor_loss", ".2f"), ("critic", "train/critic_loss", ".1e")),
        *(("entropy", "train/ent_coef", ".2g"), _REPLAY),
        *_LAST,
    ),
    "qc": (*_FIRST, *_CHUNKS, _IMITATION, _REPLAY, *_LAST),
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

    def write(self, key_values: dict[str, object], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        if not any(key.startswith("train/") for key in key_values):
            return
        if self._rows % _ROWS_PER_HEADING == 0:
            _logger.info(" ".join([f"{'steps':>10}", *(f"{name:>{_WIDTH}}" for name, _, _ in self._columns)]))
        self._rows += 1
        numbers = plain_numbers(key_values)
        shown = ((numbers.get(key), form) for _, key, form in self._columns)
        cells = [f"{'' if value is None else format(float(value), form):>{_WIDTH}}" for value, form in shown]
        _logger.info(" ".join([f"{step:>10}", *cells]).rstrip())

    def write_sequence(self, sequence: Sequence[str]) -> None:
        _logger.info(" ".join(sequence))

    def close(self) -> None:
        """Nothing to close."""


class JsonLines(KVWriter):
    """Appends one object per dump to `metrics.jsonl`: `step` and every number; NaN becomes null."""

    def __init__(self, folder: Path, *, keep_until: int | None = None) -> None:
        """Open for appending; with `keep_until`, lines past that many simulator steps are dropped first."""
        path = folder / METRICS_FILE
        rows = read_rows(path) if keep_until is not None and path.is_file() else []
        kept = [line for line, row in rows if row["step"] <= (keep_until or 0)]
        write_text(path, "".join(line + "\n" for line in kept))
        # Line buffering: a run that is killed keeps every line.
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def write(self, key_values: dict[str, object], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        self._file.write(json.dumps({"step": step, **plain_numbers(key_values)}) + "\n")

    def close(self) -> None:
        self._file.close()


class TensorBoard(TensorBoardOutputFormat):
    """SB3's writer; a resumed run hides the events past its checkpoint."""

    def __init__(self, folder: Path, *, keep_until: int | None = None) -> None:
        purge_step = None if keep_until is None else keep_until + 1
        self.writer = SummaryWriter(log_dir=str(folder), purge_step=purge_step)
        self._is_closed = False


def plain_numbers(values: Mapping[str, object]) -> dict[str, float | int | None]:
    """Return the scalar numbers of `values` as JSON values, sorted by key; anything else is left out."""
    plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in sorted(values.items())}
    return {
        key: +value if math.isfinite(value) else None for key, value in plain.items() if isinstance(value, int | float)
    }


# Experiment trackers, through Accelerate's classes ---------------------------------------------------


class TrackerWriter(KVWriter):
    """Hands every dump of the logger to a tracker; the first failure is logged, and ends only the tracking."""

    def __init__(self, tracker: Any) -> None:
        self._tracker: Any | None = tracker

    def write(self, key_values: dict[str, object], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        numbers = {key: value for key, value in plain_numbers(key_values).items() if value is not None}
        self._guarded(lambda tracker: tracker.log(numbers, step=step))

    def close(self) -> None:
        self._guarded(lambda tracker: tracker.finish())
        self._tracker = None

    def _guarded(self, call: Callable[[Any], None]) -> None:
        if self._tracker is None:
            return
        try:
            call(self._tracker)
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises, training goes on
            said = " ".join(str(error).split())
            _logger.warning("warning: %s is given up, the run goes on: %s", self._tracker.name, said)
            self._tracker = None


def start_trackers(tracking: Tracking, run: RunFolder, config: RunConfig) -> list[KVWriter]:
    """Begin (or, for a run folder that goes on, resume) the run at each tracker; local files lie in the run folder.

    Raises `BadValue` when one refuses, for instance without a login; those before it are finished.
    """
    with ExitStack() as started:
        writers: list[KVWriter] = []
        for name in tracking.trackers:
            writers.append(_start(name, tracking, run, config))
            started.callback(writers[-1].close)
        started.pop_all()
    return writers


def _start(name: str, tracking: Tracking, run: RunFolder, config: RunConfig) -> TrackerWriter:
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState()  # its trackers ask it which process they are in
    # Drawn once: 21 lower-case letters and digits, as all trackers take.
    file = run.path / TRACKER_ID_FILE
    if not file.is_file():
        file.write_text(uuid.uuid4().hex[:21], encoding="utf-8")
    run_id = file.read_text(encoding="utf-8")
    title = f"{config.algo}/{run.path.name}"
    own: Mapping[str, Mapping[str, Any]] = {
        "wandb": {"dir": str(run.path), "name": title, "id": run_id},
        "swanlab": {"logdir": str(run.path / "swanlab"), "experiment_name": title, "id": run_id},
        # It knows a run by its name alone.
        "trackio": {"name": f"{title}-{run_id[:6]}"},
    }
    arguments = {**own[name], "resume": "allow", **tracking.keywords(name)}
    tracker = LOGGER_TYPE_TO_CLASS[name](tracking.project_of(name), **arguments)
    try:
        tracker.start()
        tracker.store_init_configuration(to_plain(config))
    except Exception as error:
        said = " ".join(str(error).split()).rstrip(".")
        raise BadValue(
            f"--track {name}: it does not start: {said}. Log in ({name} login), {SERVICES[name].offline}, "
            f"or leave {name} out of --track"
        ) from error
    return TrackerWriter(tracker)
