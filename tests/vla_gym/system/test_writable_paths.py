from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from vla_gym.errors import BadValue
from vla_gym.system.writable_paths import check_destination, check_folder


def test_a_file_may_go_into_folders_that_are_still_to_be_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "film.MP4"
    assert check_destination(path, suffix=".mp4") == path
    assert not list(tmp_path.iterdir())
    (tmp_path / "old.mp4").write_text("")
    check_destination(tmp_path / "old.mp4", suffix=".mp4")
    check_destination(Path("/dev/null"))


@pytest.mark.parametrize(
    ("name", "suffix", "says"),
    [
        ("folder", "", r"it is a folder; name a file in it, e\.g\. .*folder/results\.json"),
        ("folder", ".mp4", r"it is a folder; name a file in it, e\.g\. .*folder/results\.mp4"),
        ("film.txt", ".mp4", r"its name must end in \.mp4, e\.g\. .*film\.mp4"),
        ("film", ".mp4", r"its name must end in \.mp4, e\.g\. .*film\.mp4"),
        ("file/results.json", "", "'.*/file' is a file, no folder"),
        ("file/folder/results.json", "", "'.*/file' is a file, no folder"),
        ("loop/film.mp4", "", "'.*/loop' is a link that leads nowhere"),
        ("gone/folder/film.mp4", "", "'.*/gone' is a link that leads nowhere"),
        ("n" * 300, "", "File name too long"),
    ],
)
def test_where_no_file_can_go_is_told_with_the_reason(name: str, suffix: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("no-such-folder")
    with pytest.raises(BadValue, match=f"cannot write '.*': {says}"):
        check_destination(tmp_path / name, suffix=suffix)


def refuse(*args: Any, **kwargs: Any) -> None:
    """Whatever is asked for."""
    raise PermissionError(errno.EACCES, "Permission denied")


def test_what_must_not_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(BadValue, match="must not be written"):
        check_destination(tmp_path / "file")
    monkeypatch.setattr("vla_gym.system.writable_paths.TemporaryDirectory", refuse)
    with pytest.raises(BadValue, match=r"folder '.*' must not be written \(Permission denied\)"):
        check_destination(tmp_path / "new" / "file")


def test_a_folder_is_there_or_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"what": "a dataset", "flag": "-o FOLDER"}
    assert check_folder(tmp_path, **words) == tmp_path
    check_folder(tmp_path / "new" / "folder", **words)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    for wanted in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(BadValue, match=r"a dataset under '.*': '.*/file' is a file, no folder; give another"):
            check_folder(wanted, **words)
    with pytest.raises(BadValue, match="File name too long"):
        check_folder(tmp_path / ("n" * 300), **words)
    monkeypatch.setattr("vla_gym.system.writable_paths.TemporaryDirectory", refuse)
    with pytest.raises(BadValue, match="must not be written"):
        check_folder(tmp_path, **words)
