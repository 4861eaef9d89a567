from __future__ import annotations

import numpy as np
import pytest

from vla_gym import text
from vla_gym.errors import BadValue


def test_encoding_is_utf8_bytes_then_zeros() -> None:
    data = text.encode("ab")
    assert data.dtype == np.uint8
    assert data.shape == (160,)
    assert data[:3].tolist() == [97, 98, 0]
    assert not data[2:].any()


@pytest.mark.parametrize("sentence", ["reach the red block", "the robot\u2019s cup", "x" * 160])
def test_decode_undoes_encode(sentence: str) -> None:
    assert text.decode(text.encode(sentence)) == sentence
    assert text.decode(text.encode(sentence).astype(np.float32)) == sentence


def test_the_curly_apostrophe_takes_three_bytes() -> None:
    assert text.encode("\u2019")[:4].tolist() == [0xE2, 0x80, 0x99, 0]


@pytest.mark.parametrize("sentence", ["", "x" * 161, "\u2019" * 54, "a\0b"])
def test_what_does_not_fit_is_refused(sentence: str) -> None:
    with pytest.raises(BadValue):
        text.encode(sentence)


def test_strange_letters_are_refused() -> None:
    text.check_speakable("put it, please (now)")
    with pytest.raises(BadValue, match="é"):
        text.check_speakable("café")


def test_only_one_sentence_is_decoded() -> None:
    with pytest.raises(BadValue, match="shape"):
        text.decode(np.zeros((2, 160), dtype=np.uint8))
