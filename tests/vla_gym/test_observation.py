from __future__ import annotations

import numpy as np
import pytest

from vla_gym.errors import BadValue
from vla_gym.observation import ObservationLayout, decode_instruction, encode_instruction


def test_instructions_are_sentences() -> None:
    space = ObservationLayout(cameras=("image",), image_size=16, state_dim=0).space()["instruction"]
    assert space.contains("Put the robot\u2019s bowl on the plate, please.")
    assert not space.contains("")
    assert not space.contains("naïve")


def test_encoding_is_utf8_bytes_then_zeros() -> None:
    data = encode_instruction("ab")
    assert data.dtype == np.uint8
    assert data.shape == (352,)
    assert data[:3].tolist() == [97, 98, 0]
    assert not data[2:].any()


@pytest.mark.parametrize("sentence", ["reach the red block", "the robot\u2019s cup", "x" * 352])
def test_decode_undoes_encode(sentence: str) -> None:
    assert decode_instruction(encode_instruction(sentence)) == sentence
    assert decode_instruction(encode_instruction(sentence).astype(np.float32)) == sentence


@pytest.mark.parametrize("sentence", ["", "x" * 353, "\u2019" * 118, "a\0b"])
def test_what_does_not_fit_is_refused(sentence: str) -> None:
    with pytest.raises(BadValue):
        encode_instruction(sentence)
