"""Which sentence a frame is shown with, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.zoo.imitation.test_augmentation import Constant
from vla_gym.errors import BadValue, UnknownName
from vla_gym.observation import decode_instruction, encode_instruction
from vla_policies.actions.noise import SlotNoise
from zoo.imitation.paraphrases import paraphrases_of, read_paraphrases


def encoded(*sentences: str) -> Tensor:
    return torch.from_numpy(np.stack([encode_instruction(one) for one in sentences]))


def words(instruction_BL: Tensor) -> list[str]:
    return [decode_instruction(row) for row in instruction_BL.numpy()]


TAUGHT = encoded("push it", "pull it", "push it")
OTHERS = {"push it": ("shove it", "move it away")}


@pytest.mark.parametrize(
    ("number", "push"),
    [(0.0, "push it"), (0.33, "push it"), (0.34, "shove it"), (0.67, "move it away"), (0.999999, "move it away")],
)
def test_all_choices_are_equally_likely_and_other_sentences_stay(number: float, push: str) -> None:
    paraphrases = paraphrases_of(OTHERS, TAUGHT)
    shown = paraphrases.drawn(encoded("pull it", "push it", "another"), Constant(number))
    assert words(shown) == ["pull it", push, "another"]


def test_what_is_drawn_follows_from_seed_update_and_place() -> None:
    paraphrases = paraphrases_of(OTHERS, TAUGHT)
    whole = words(paraphrases.drawn(encoded(*["push it"] * 6), SlotNoise(3, (5, 0), np.arange(6))))
    later = words(paraphrases.drawn(encoded(*["push it"] * 3), SlotNoise(3, (5, 0), np.arange(3, 6))))
    assert whole[3:] == later
    assert len(set(whole)) > 1


def test_other_choices_have_another_digest() -> None:
    assert paraphrases_of(OTHERS, TAUGHT).digest() != paraphrases_of({"push it": ("shove it",)}, TAUGHT).digest()


def test_a_sentence_that_was_not_taught_is_named() -> None:
    with pytest.raises(UnknownName, match=r"'push that'.*Did you mean 'push it'"):
        paraphrases_of({"push that": ("shove it",)}, TAUGHT)


def test_a_file_maps_sentences_to_lists(tmp_path: Path) -> None:
    file = tmp_path / "words.yml"
    file.write_text("push it: [shove it, move it away]\n")
    assert read_paraphrases(file) == OTHERS
    for text, says in (
        ("- push it", "must map sentences to lists of sentences, got list"),
        ("push it: shove it", "'push it' must have a list of 1 to 100 sentences, got 'shove it'"),
        ("push it: []", "got []"),
        ("push it: [3]", "got [3]"),
        ("push it: ['']", "0 UTF-8 bytes"),
        ("3: [shove it]", "a key must be text, got 3"),
    ):
        file.write_text(text)
        with pytest.raises(BadValue) as error:
            read_paraphrases(file)
        assert says in str(error.value)
