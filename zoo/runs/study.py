"""The study of a search: Optuna's, in an SQLite file that several processes may share."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vla_gym.errors import BadValue
from zoo.files import content_of, missing_folders, remove_empty

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial

STUDY_FILE = "study.db"


@contextmanager
def database(file: Path) -> Iterator[None]:
    """Context manager in which what a study's database raises becomes a `BadValue` that names the file."""
    from optuna.exceptions import OptunaError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, OptunaError) as error:
        # SQLite's own words are inside SQLAlchemy's error, and that may be inside Optuna's.
        inner = getattr(error, "orig", None) or getattr(error.__cause__, "orig", None)
        reason = (str(inner or error).splitlines() or [type(error).__name__])[0]
        raise BadValue(
            f"the study '{file}' cannot be used: {reason}. Move it away to search anew, or take another -f DIR"
        ) from error


@contextmanager
def opened(folder: Path, name: str, seed: int) -> Iterator[Study]:
    """Context manager that opens, or begins, the folder's study `name`; other processes wait until it ends.

    The sampler draws from `seed` plus the number of trials: one that went on from the same seed would draw the first
    trials again. Raises `BadValue` for a file that is no study, is damaged, or cannot be written; nothing new is left.
    """
    import optuna

    # Its warning of a trial that failed is a traceback; commands print the error in one line.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    file, made = folder / STUDY_FILE, missing_folders(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        begins = not file.exists()
        try:
            with database(file), content_of(file), _storage(file) as storage:
                study = optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
                study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials))
                if completed_trials(study):
                    _ = study.best_trial  # read now, not after a trial has been trained
                yield study
        except BaseException:
            if begins:
                for part in folder.glob(f"{STUDY_FILE}*"):
                    part.unlink(missing_ok=True)
                remove_empty(made)
            raise


@contextmanager
def _storage(file: Path) -> Iterator[RDBStorage]:
    from optuna.storages import RDBStorage
    from sqlalchemy import URL

    # Not put together by hand: `?`, `%` and braces mean something in an address.
    storage = RDBStorage(URL.create("sqlite", database=str(file)).render_as_string())
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()  # closes the database, which SQLAlchemy would keep open


def completed_trials(study: Study) -> list[FrozenTrial]:
    """Return the completed trials; one that failed does not count, another takes its place."""
    from optuna.trial import TrialState

    return study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
