"""Files that others wrote: what is wrong with them is one error that names them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vla_gym.errors import BadValue
from vla_gym.reading import file_sha256, inside, parse_json, read_bytes, read_json_object, read_text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff", "no UTF-8 text: byte 0 is 0xff"),
        (b"{", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[1]", "must hold a JSON object, got list"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"a":' * 100_000, "nested too deep"),
        (b'{"n": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_what_is_no_object_is_named(content: bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(BadValue, match=says) as caught:
        read_json_object(file)
    assert str(file) in str(caught.value)


def test_json_of_many_values_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three bytes of text, `[],`, stand for sixty bytes of memory."""
    monkeypatch.setattr("vla_gym.reading.MOST_VALUES", 1000, raising=False)
    assert len(parse_json(f"[{'[],' * 400}0]", "x.json")) == 401
    with pytest.raises(BadValue, match=r"'x\.json' holds about 1201 values, at most 1000 are read"):
        parse_json(f"[{'[],' * 600}0]", "x.json")


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, says in (
        (tmp_path / "pipe", "a pipe or a device"),
        (Path("/dev/zero"), "a pipe or a device"),
        (tmp_path, "is a folder"),
        (tmp_path / "none", "No such file or directory; create it or check its name"),
        (tmp_path / ("n" * 300), "File name too long; give a shorter name"),
    ):
        with pytest.raises(BadValue, match=says):
            read_text(path)


def test_large_files_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.truncate(11)
    assert len(read_bytes(tmp_path / "x", most=11)) == 11
    with pytest.raises(BadValue, match="has 11 bytes, at most 10 are read"):
        read_bytes(tmp_path / "x", most=10)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", None, 3, "a\0b", "out/x"])
def test_names_that_leave_the_folder(name: object, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "out").symlink_to(tmp_path)
    with pytest.raises(BadValue, match=r"info\.json"):
        inside(root, name, "info.json")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(BadValue, match="is no regular file, but a pipe"):
        file_sha256(tmp_path / "model.safetensors")
