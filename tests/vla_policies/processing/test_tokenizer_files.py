"""Tokenizers that others wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tokenizers
from tokenizers.models import WordLevel

from vla_gym.errors import BadValue
from vla_policies.processing.tokenizer_files import MOST_BYTES, read_tokenizer


def test_a_tokenizer_is_read(tmp_path: Path) -> None:
    tokenizers.Tokenizer(WordLevel({"go": 7}, unk_token="go")).save(str(tmp_path / "t.json"))  # noqa: S106 - a word
    assert read_tokenizer(tmp_path / "t.json").token_to_id("go") == 7


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[" * 3000, b'{"version": "1.0", "model": {"type": "x"}}'])
def test_what_is_none_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(BadValue, match=f"'{tmp_path}/t.json'"):
        read_tokenizer(tmp_path / "t.json")


def test_what_would_fill_the_memory_or_never_end_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "t.json").touch()
    os.truncate(tmp_path / "t.json", MOST_BYTES + 1)
    with pytest.raises(BadValue, match="at most"):
        read_tokenizer(tmp_path / "t.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadValue, match="pipe"):
        read_tokenizer(tmp_path / "pipe")


def test_a_panic_of_the_library_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    panic = type("PanicException", (BaseException,), {})

    class Panics:
        @staticmethod
        def from_str(text: str) -> None:
            raise panic("index out of bounds")

    (tmp_path / "t.json").write_text("{}")
    monkeypatch.setattr(tokenizers, "Tokenizer", Panics)
    with pytest.raises(BadValue, match="index out of bounds"):
        read_tokenizer(tmp_path / "t.json")
