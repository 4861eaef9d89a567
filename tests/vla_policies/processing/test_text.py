"""Tokenizers that others wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tokenizers
from tokenizers.models import WordLevel

from vla_gym.errors import BadValue
from vla_policies.processing.observations import MOST_BYTES, read_tokenizer, tokenize, word_id

GOLDEN = (891931, 388522, 56977, 18851)
"""Ids of "reach the red block"; a change of these numbers makes every trained nano deaf.
Python hashes strings by another seed in every process, which these do not follow."""


def test_golden_ids() -> None:
    assert tokenize("reach the red block") == GOLDEN
    assert tokenize("  Reach THE red-block!") == GOLDEN
    assert tokenize("Bowl\u2019s") == (883317, word_id("s"))


def test_ids_have_twenty_bits_and_common_words_differ() -> None:
    words = [f"{colour}{kind}" for colour in "abcdefghijklmnopqrst" for kind in range(20)]
    ids = [word_id(word) for word in words]
    assert all(0 <= token < 1 << 20 for token in ids)
    assert len(set(ids)) == len(words)


@pytest.mark.parametrize("text", ["", "  ", "!?"])
def test_a_sentence_without_words_raises(text: str) -> None:
    with pytest.raises(BadValue, match="holds 0 words"):
        tokenize(text)
    with pytest.raises(BadValue, match="holds 81 words; it must have 1 to 80"):
        tokenize("go " * 81)


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
