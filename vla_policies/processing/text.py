"""Text -> token ids: tokenizers that others wrote, padding, and hashed words, which need no vocabulary.

A hashed word's id has 20 bits and each half is a row of a table of 1024, so two words are confused only when all 20
bits agree (one pair in a million) although the tables stay small. Ids are the same in every process and version.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from vla_gym.errors import BadValue, shortened, shown
from vla_gym.observation import MAX_INSTRUCTION_BYTES
from vla_gym.reading import read_text

MOST_BYTES = 64 * 2**20
"""Largest tokenizer file that is read; PaliGemma's, with 257,152 pieces, has 17 MB."""
HALF_BITS = 10
"""Bits of each half of an id."""
MAX_TOKENS = MAX_INSTRUCTION_BYTES // 2
"""L. No instruction that fits an observation has more words."""

_WORD = re.compile(r"\w+")


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer in a file; raises `BadValue` where there is none."""
    return parse_tokenizer(read_text(path, most=MOST_BYTES), path)


def parse_tokenizer(text: str, where: object) -> Tokenizer:
    """Return the tokenizer that `text` describes; raises `BadValue` for anything else, naming `where` it comes from."""
    try:
        return Tokenizer.from_str(text)
    except BaseException as error:
        # The library raises bare Exception for every fault of the file, and panics, which are no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise BadValue(f"'{where}' cannot be read as a tokenizer: {shortened(str(error), 200)}") from error


def pad_ids(rows: Sequence[Sequence[int]], length: int, pad: int = 0) -> tuple[Tensor, Tensor]:
    """Ragged token ids to int64 `[B, length]`, right padded with `pad`, and the bool mask of real ones."""
    ids_BL = torch.full((len(rows), length), pad, dtype=torch.int64)
    mask_BL = torch.zeros(len(rows), length, dtype=torch.bool)
    for index, row in enumerate(rows):
        ids_BL[index, : len(row)] = torch.tensor(row)
        mask_BL[index, : len(row)] = True
    return ids_BL, mask_BL


def word_id(word: str) -> int:
    """20-bit id of a lower-case word: the first bits of its BLAKE2b digest."""
    digest = hashlib.blake2b(word.encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - 2 * HALF_BITS)


@lru_cache(maxsize=4096)
def tokenize(text: str) -> tuple[int, ...]:
    """Ids of the words of `text`, case folded, punctuation dropped. Raises `BadValue` when there is none."""
    words = _WORD.findall(text.casefold())
    if not words:
        raise BadValue(f"the instruction {shown(text)} holds no word")
    return tuple(word_id(word) for word in words)
