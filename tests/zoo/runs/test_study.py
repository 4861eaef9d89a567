"""A study's file: begun, gone on with, damaged, on a full disk."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from optuna.distributions import FloatDistribution
from sqlalchemy.exc import OperationalError

from vla_gym.errors import BadValue
from zoo.runs.study import STUDY_FILE, completed_trials, opened

NAME = "ppo Toy-Reach 100"


def begin(folder: Path) -> Path:
    """A study with two completed trials and one that failed."""
    with opened(folder, NAME, seed=0) as study:
        for value in (0.1, 0.3, None):
            trial = study.ask({"learning_rate": FloatDistribution(1e-5, 1e-3)})
            study.tell(trial, value, state=None if value else optuna.trial.TrialState.FAIL)
    return folder / STUDY_FILE


def test_a_study_goes_on(tmp_path: Path) -> None:
    begin(tmp_path / "new")
    with opened(tmp_path / "new", NAME, seed=0) as study:
        assert [trial.value for trial in completed_trials(study)] == [0.1, 0.3]
        assert study.best_value == 0.3
        drawn = study.ask({"learning_rate": FloatDistribution(1e-5, 1e-3)}).params
    assert drawn not in [trial.params for trial in study.trials[:3]]


@pytest.mark.parametrize("name", ["what?", "100%20 #1", "{x}"])
def test_a_folder_of_any_name(name: str, tmp_path: Path) -> None:
    assert begin(tmp_path / name).is_file()
    with opened(tmp_path / name, NAME, seed=0) as study:
        assert len(completed_trials(study)) == 2
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_database_is_closed(tmp_path: Path) -> None:
    file = begin(tmp_path)
    opened_files = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert str(file.resolve()) not in opened_files


def drop_values(file: Path) -> None:
    """Completed trials without their results."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("delete from trial_values")
        connection.commit()


def replace(file: Path, old: bytes, new: bytes) -> None:
    """Other bytes of the same length."""
    file.write_bytes(file.read_bytes().replace(old, new.ljust(len(old), b" ")))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda file: file.write_bytes(b"garbage" * 99), "cannot be used: file is not a database. Move it away"),
        (lambda file: replace(file, b"learning_rate", b"\xff" * 13), "cannot be used: Could not decode"),
        (lambda file: replace(file, b"FloatDistribution", b"{"), "is damaged: ValueError: Unknown dist"),
        (lambda file: (file.unlink(), file.mkdir()), "cannot be used: unable to open database file. Move it away"),
        (drop_values, "is damaged: ValueError: "),
    ],
)
def test_a_damaged_study_is_named_and_stays(harm: Callable[[Path], object], says: str, tmp_path: Path) -> None:
    harm(file := begin(tmp_path))
    with pytest.raises(BadValue, match=says), opened(tmp_path, NAME, seed=0):
        pass
    assert file.exists()


def test_a_study_that_cannot_be_begun_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **settings: object) -> None:
        (tmp_path / "new" / "folder" / STUDY_FILE).write_bytes(b"half")
        raise OperationalError("", None, sqlite3.OperationalError("database or disk is full"))

    monkeypatch.setattr(optuna, "create_study", full)
    with (
        pytest.raises(BadValue, match="cannot be used: database or disk is full"),
        opened(tmp_path / "new" / "folder", NAME, seed=0),
    ):
        pass
    assert not [*tmp_path.iterdir()]
