"""`--track wandb|swanlab`: a run's numbers go to an experiment tracker too, through Accelerate's tracker classes.

A tracker is a guest: what keeps it from starting is said before the run begins, what happens to it later never
ends a run. Projects, teams and modes are set by its own environment variables (WANDB_PROJECT, WANDB_MODE, ...).
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from stable_baselines3.common.logger import KVWriter

from vla_gym.errors import BadValue
from zoo.config.run_config import RunConfig, to_plain
from zoo.runs.folder import RunFolder
from zoo.runs.loggers import plain_numbers
from zoo.runs.trackers import TRACKERS

_logger = logging.getLogger(__name__)

PROJECT = "vla-zoo"
_ID_FILE = "tracker_id.txt"


class TrackerWriter(KVWriter):
    """Hands every dump of the logger to a tracker; the first failure is logged, and ends only the tracking."""

    def __init__(self, tracker: Any) -> None:
        self._tracker: Any | None = tracker

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
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
            _logger.warning(
                "warning: %s is given up, the run goes on: %s", self._tracker.name, one_line(error)
            )
            self._tracker = None


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
    """What an error says, without line breaks or the full stop."""
    return " ".join(str(error).split()).rstrip(".")


def _run_id(run: RunFolder) -> str:
    """The tracker's name of this run, drawn once: 21 lower-case letters and digits, as both trackers take."""
    path = run.path / _ID_FILE
    if not path.is_file():
        path.write_text(uuid.uuid4().hex[:21], encoding="utf-8")
    return path.read_text(encoding="utf-8")
