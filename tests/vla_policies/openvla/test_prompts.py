from __future__ import annotations

import pytest

from vla_policies.openvla.processor import BOS, SPACE, PromptTokenizer, openvla_prompt, template_of


def test_the_instruction_is_in_lower_case() -> None:
    assert openvla_prompt("Pick up the Mug") == "In: What action should the robot take to pick up the mug?\nOut:"


@pytest.mark.parametrize("key", ["llm_backbone_id", "hf_llm_id"])
def test_openvla_v01_is_asked_as_its_vicuna_chats(key: str) -> None:
    assert openvla_prompt("Pick up the Mug", template_of({key: "lmsys/Vicuna-7b-v1.5"})) == (
        "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
        "detailed, and polite answers to the user's questions. "
        "USER: What action should the robot take to pick up the mug? ASSISTANT:"
    )


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
