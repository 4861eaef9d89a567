from __future__ import annotations

from pathlib import Path

import pytest

from vla_gym.errors import BadValue
from vla_policies.smolvla.tokenizer import Encoder, TextTokenizer, bracket_ids, folder_encoder, words_encoder


@pytest.mark.parametrize(("keep_end", "kept"), [(True, ["b", "c", "\n"]), (False, ["a", "b", "c"])])
def test_a_long_text_is_cut_at_the_tokenizers_side(keep_end: bool, kept: list[str]) -> None:
    tokenizer = TextTokenizer(Encoder(lambda text: [ord(letter) for letter in text], 2, keep_end), 3)
    ids, mask = tokenizer.batch(["abc", "d", "d\n"])
    assert ids.tolist() == [[ord(letter) for letter in kept], [100, 10, 2], [100, 10, 2]]
    assert mask.sum(dim=1).tolist() == [3, 2, 2]


def test_hashed_words_are_within_the_table() -> None:
    ids = words_encoder(16).ids("reach the red block\n")
    assert len(ids) == 4
    assert all(1 <= number < 16 for number in ids)


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"has no tokenizer.json; put the vision-language model's there"):
        folder_encoder(tmp_path)
    with pytest.raises(BadValue, match=r"has no tokenizer.json"):
        bracket_ids(tmp_path)
