"""Words -> token ids by hashing: no vocabulary file, the same ids in every process and version.

An id has 20 bits and each half is a row of a table of 1024, so two words are confused only when all 20 bits agree
(one pair in a million) although the tables stay small.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from vla_gym.errors import BadValue, shown
from vla_gym.observation import MAX_INSTRUCTION_BYTES

HALF_BITS = 10
"""Bits of each half of an id."""
MAX_TOKENS = MAX_INSTRUCTION_BYTES // 2
"""L. No instruction that fits an observation has more words."""

_WORD = re.compile(r"\w+")


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
