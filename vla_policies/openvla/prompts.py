"""Instruction -> token ids, as in the training of OpenVLA and its fine-tunes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

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


def openvla_prompt(instruction: str) -> str:
    """OpenVLA's prompt for an instruction."""
    return f"In: What action should the robot take to {instruction.lower()}?\nOut:"


class PromptTokenizer:
    """Prompts to ids, BOS first and `SPACE` last; each distinct sentence is tokenised once.

    :param source: contents of a `tokenizer.json`; "" spells prompts in Llama's byte tokens, for networks
        that were never trained.
    :param where: names the source in errors.
    """

    def __init__(self, source: str, where: str = "tokenizer.json") -> None:
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
        prompt = openvla_prompt(instruction)
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
