"""Texts to ids, as pi0 and SmolVLA share them."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from vla_gym.errors import BadValue
from vla_policies.conventions import Conventions
from vla_policies.processing.statistics import Statistics
from vla_policies.smolvla.config import tiny_config
from vla_policies.smolvla.processor import SmolVLAProcessor
from vla_policies.vlm_flow.processor import TextTokenizer, words_encoder


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


@pytest.mark.parametrize(("keep_end", "kept"), [(True, "bcd"), (False, "abc")])
def test_a_long_text_is_cut_at_one_side_and_said_once(
    keep_end: bool, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = TextTokenizer(letters, 3, pad=2, keep_end=keep_end)
    with caplog.at_level(logging.WARNING):
        ids, mask = tokenizer.batch(["abcd", "d", "efgh"])
    assert ids[:2].tolist() == [letters(kept), [100, 2, 2]]
    assert mask.sum(dim=1).tolist() == [3, 1, 3]
    assert len(caplog.records) == 1


def test_hashed_words_stay_in_the_vocabulary() -> None:
    ids = words_encoder(109, 120)("put the bowl on the plate")
    assert ids[1] == ids[4]
    assert all(109 <= token < 120 for token in ids)


def test_statistics_too_short_are_named_unless_they_are_left_out() -> None:
    config, tokenizer = tiny_config(), TextTokenizer(letters, 3)
    conventions = Conventions(cameras=("image",), image_size=64, state_dim=3, chunk=4, action_dim=2)
    short = replace(config.preprocessing, state=Statistics(mean=(1.0,), std=(2.0,)))
    with pytest.raises(BadValue, match="state statistics have 1 dims, 3 are needed"):
        SmolVLAProcessor(conventions, short, config.network, tokenizer)
    SmolVLAProcessor(conventions, replace(short, use_statistics=False), config.network, tokenizer)
