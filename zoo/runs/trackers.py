"""Experiment trackers as writers of a run's logger, through Accelerate's classes.

One that cannot start is named before the first update; a later failure ends only the tracking.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from stable_baselines3.common.logger import KVWriter

from vla_gym.errors import BadValue
from zoo.config.run_config import RunConfig, to_plain
from zoo.config.tracking import SERVICES, Tracking
from zoo.runs.folder import TRACKER_ID_FILE, RunFolder
from zoo.runs.loggers import plain_numbers

_logger = logging.getLogger(__name__)


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


def start_trackers(tracking: Tracking, run: RunFolder, config: RunConfig) -> list[KVWriter]:
    """Begin (or, for a run folder that goes on, resume) the run at each tracker; local files lie in the run folder.

    Raises `BadValue` when one refuses, for instance without a login; those before it are finished.
    """
    writers: list[KVWriter] = []
    try:
        for name in tracking.trackers:
            writers.append(_start(name, tracking, run, config))
    except BadValue:
        for writer in writers:
            writer.close()
        raise
    return writers


def _start(name: str, tracking: Tracking, run: RunFolder, config: RunConfig) -> TrackerWriter:
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState()  # its trackers ask it which process they are in
    run_id = _run_id(run)
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
        raise BadValue(
            f"--track {name}: it does not start: {one_line(error)}. Log in ({name} login), {SERVICES[name].offline}, "
            f"or leave {name} out of --track"
        ) from error
    return TrackerWriter(tracker)


def one_line(error: Exception) -> str:
    """The error's text, without line breaks or the full stop."""
    return " ".join(str(error).split()).rstrip(".")


def _run_id(run: RunFolder) -> str:
    """The trackers' name of this run, drawn once: 21 lower-case letters and digits, as all of them take."""
    path = run.path / TRACKER_ID_FILE
    if not path.is_file():
        path.write_text(uuid.uuid4().hex[:21], encoding="utf-8")
    return path.read_text(encoding="utf-8")
