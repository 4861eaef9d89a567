"""Texts to ids, as pi0 and SmolVLA share them."""

from __future__ import annotations

import logging

import pytest

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
