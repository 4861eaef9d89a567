from __future__ import annotations

import pytest

from vla_gym.errors import BadValue
from vla_policies.openvla.prompts import BOS, SPACE, PromptTokenizer, openvla_prompt


def test_the_instruction_is_in_lower_case() -> None:
    assert openvla_prompt("Pick up the Mug") == "In: What action should the robot take to pick up the mug?\nOut:"


def test_without_a_tokenizer_letters_are_bytes() -> None:
    ids = PromptTokenizer("").ids("go")
    prompt = openvla_prompt("go").encode()
    # Llama's byte b has id b + 3; BOS before, the lone space after.
    assert ids == (BOS, *(byte + 3 for byte in prompt), SPACE)


def test_a_batch_is_padded_on_the_right() -> None:
    tokenizer = PromptTokenizer("")
    ids_BL, mask_BL = tokenizer.batch(["go", "go up"], pad=7)
    assert ids_BL.shape == mask_BL.shape == (2, len(tokenizer.ids("go up")))
    assert ids_BL[0].tolist() == [*tokenizer.ids("go"), 7, 7, 7]
    assert mask_BL.sum(1).tolist() == [len(tokenizer.ids("go")), len(tokenizer.ids("go up"))]


def test_an_instruction_needs_a_word() -> None:
    with pytest.raises(BadValue, match="holds no word"):
        PromptTokenizer("").ids("  ")


def test_a_broken_tokenizer_is_named() -> None:
    with pytest.raises(BadValue, match=r"'some\.json' cannot be read as a tokenizer"):
        PromptTokenizer("{}", "some.json")
