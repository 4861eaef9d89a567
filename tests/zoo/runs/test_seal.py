from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vla_gym.errors import BadValue
from vla_gym.reading import file_sha256
from zoo.runs.folder import STATE_FILE
from zoo.runs.seal import HASHES, check_seal, sealed


@pytest.fixture
def state(tmp_path: Path) -> dict[str, Any]:
    """What a checkpoint of two files says, as it is read back."""
    for name in ("a.safetensors", "b.json"):
        (tmp_path / name).write_bytes(name.encode() * 100)
    files = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    written = sealed(
        {"step": 3, "x": (0.1, None), "files": files}, {name: file_sha256(tmp_path / name) for name in files}
    )
    read: dict[str, Any] = json.loads(json.dumps(written))
    return read


def test_what_was_written_is_what_is_read(state: dict[str, Any], tmp_path: Path) -> None:
    check_seal(tmp_path, state)


@pytest.mark.parametrize("name", ["a.safetensors", "b.json"])
def test_one_bit_of_a_file(name: str, state: dict[str, Any], tmp_path: Path) -> None:
    data = bytearray((tmp_path / name).read_bytes())
    data[50] ^= 1
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadValue, match=f"{name} does not hold what was written"):
        check_seal(tmp_path, state)


def test_the_record_itself(state: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=rf"{STATE_FILE} does not hold what was written"):
        check_seal(tmp_path, {**state, "step": 4})
    hashes = {name: value for name, value in state[HASHES].items() if name != "b.json"}
    for wrong in (hashes, [], "x"):
        with pytest.raises(BadValue, match="does not have the hash of every file"):
            check_seal(tmp_path, {**state, HASHES: wrong})


def test_a_file_that_is_changed_on_purpose_is_sealed_anew(state: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text("other")
    check_seal(tmp_path, sealed(state, {"b.json": file_sha256(tmp_path / "b.json")}))


def test_an_older_checkpoint_is_noted(
    state: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del state[HASHES]
    check_seal(tmp_path, state)
    assert "is of an older version" in capsys.readouterr().out
