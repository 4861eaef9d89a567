"""The folder of a dataset that is being collected."""

from __future__ import annotations

from pathlib import Path

import pytest

from vla_gym.errors import BadValue
from zoo.demonstrations.dataset_folder import is_unused, locked

DEAD = 2**22 + 1
"""No process has this number: it is above Linux's largest."""


def test_one_process_collects_into_a_folder(tmp_path: Path) -> None:
    with locked(tmp_path / "a" / "d"):
        with pytest.raises(BadValue, match="another process collects into"), locked(tmp_path / "a" / "d"):
            pass
        (tmp_path / "a" / "d" / "x").touch()
    assert (tmp_path / "a" / "d" / "x").is_file()
    with locked(tmp_path / "b" / "d"):
        pass
    assert not (tmp_path / "b").exists()


def test_what_a_killed_process_had_half_written_is_removed(tmp_path: Path) -> None:
    for folder in ("meta", "data/chunk-000"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / f".file.partial-{DEAD}").write_text("half")
    (tmp_path / f".mine.partial-{DEAD}").write_text("no part of a dataset")
    assert not is_unused(tmp_path)
    with locked(tmp_path):
        found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == [f".mine.partial-{DEAD}"]


def test_a_folder_without_files_is_unused(tmp_path: Path) -> None:
    assert is_unused(tmp_path / "missing")
    (tmp_path / "data" / "chunk-000").mkdir(parents=True)
    assert is_unused(tmp_path)
    (tmp_path / "data" / "chunk-000" / "file-000.parquet").touch()
    assert not is_unused(tmp_path)


def test_other_folders_are_somebody_s(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    assert not is_unused(tmp_path)
