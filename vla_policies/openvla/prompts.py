"""Instruction -> token ids, as in the training of OpenVLA and its fine-tunes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from vla_gym.errors import BadValue, shown
from vla_policies.processing.observations import pad_ids
from vla_policies.processing.tokenizer_files import parse_tokenizer

BOS = 1
BOS_PIECE = "<s>"
SPACE = 29871
"""Llama's piece for a lone space, between "Out:" and the first action in the training text."""
_FIRST_BYTE = 3
"""Id of the byte 0 in Llama's vocabulary."""


OPENVLA = "In: What action should the robot take to {}?\nOut:"
VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the user's questions. USER: What action should the robot take to {}? ASSISTANT:"
)
"""The prompt of openvla-v01-7b, whose language model is Vicuna (openvla c8f03f48, `vla-scripts/deploy.py`)."""


def template_of(official: Mapping[str, Any]) -> str:
    """The prompt's template for a checkpoint with this `config.json`."""
    names = (str(official.get(key, "")).lower() for key in ("llm_backbone_id", "hf_llm_id"))
    return VICUNA if any("vicuna" in name for name in names) else OPENVLA


def openvla_prompt(instruction: str, template: str = OPENVLA) -> str:
    """The prompt for an instruction."""
    return template.format(instruction.lower())


class PromptTokenizer:
    """Prompts to ids, BOS first and `SPACE` last; each distinct sentence is tokenised once.

    :param source: contents of a `tokenizer.json`; "" spells prompts in Llama's byte tokens, for networks
        that were never trained.
    :param where: names the source in errors.
    :param template: of `template_of`.
    """

    def __init__(self, source: str, where: str = "tokenizer.json", template: str = OPENVLA) -> None:
        self._template = template
        self._tokenizer = _open(source, where) if source else None
        self._ids_of = lru_cache(maxsize=4096)(self._encode)

    def ids(self, instruction: str) -> tuple[int, ...]:
        """Token ids of the prompt for one instruction."""
        return self._ids_of(instruction)

    def batch(self, instructions: Sequence[str], pad: int) -> tuple[Tensor, Tensor]:
        """Ids int64 `[B, L]`, right padded with `pad`, and the bool mask of real ones."""
        rows = [self.ids(instruction) for instruction in instructions]
        return pad_ids(rows, max(len(row) for row in rows), pad)

    def _encode(self, instruction: str) -> tuple[int, ...]:
        if not instruction.strip():
            raise BadValue(f"the instruction {shown(instruction)} holds no word")
        prompt = openvla_prompt(instruction, self._template)
        if self._tokenizer is None:
            ids = [byte + _FIRST_BYTE for byte in prompt.encode("utf-8")]
        else:
            # transformers adds BOS whatever the post-processor of `tokenizer.json` is.
            ids = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        return (BOS, *ids) if ids[-1] == SPACE else (BOS, *ids, SPACE)


def _open(source: str, where: str) -> Tokenizer:
    tokenizer = parse_tokenizer(source, where)
    found = tokenizer.token_to_id(BOS_PIECE)
    if found != BOS:
        got = "no such piece" if found is None else f"id {found}"
        raise BadValue(
            f"'{where}' is not Llama's: '{BOS_PIECE}', with which prompts begin, must be id {BOS}, got {got}; "
            "take the tokenizer.json of the checkpoint or of its base"
        )
    return tokenizer
