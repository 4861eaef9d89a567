"""How an instruction travels where only arrays can: UTF-8 bytes, zero padded.

`encode` and `decode` nest: `decode(encode(text)) == text` for every text an environment may speak.
"""

from __future__ import annotations

import string

import numpy as np

from vla_gym.errors import BadValue

MAX_BYTES = 160
"""Length of an encoded instruction, bytes."""

CHARSET = frozenset(string.ascii_letters + string.digits + string.punctuation + " \u2019")
"""Printable ASCII plus the curly apostrophe (U+2019) that some benchmarks write."""


def encode(text: str) -> np.ndarray:
    """Text -> uint8 `[MAX_BYTES]`. Raises `BadValue` when empty, too long, or holding a zero byte."""
    data = text.encode("utf-8")
    if not 1 <= len(data) <= MAX_BYTES:
        raise BadValue(f"instruction {text!r} has {len(data)} UTF-8 bytes; allowed are 1 to {MAX_BYTES}")
    if 0 in data:
        raise BadValue(f"instruction {text!r} holds a zero byte, which marks the padding")
    out = np.zeros(MAX_BYTES, dtype=np.uint8)
    out[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    return out


def decode(data: np.ndarray) -> str:
    """Uint8 `[MAX_BYTES]` (any integer dtype or float with whole values) -> text."""
    raw = np.asarray(data)
    if raw.ndim != 1:
        raise BadValue(f"one encoded instruction is a vector of bytes, got shape {raw.shape}")
    return raw.astype(np.uint8).tobytes().rstrip(b"\0").decode("utf-8")


def check_speakable(text: str) -> None:
    """Raise `BadValue` unless `text` fits the observation's text space and its encoded form."""
    encode(text)
    strange = sorted(set(text) - CHARSET)
    if strange:
        raise BadValue(f"instruction {text!r} holds {strange}; allowed are printable ASCII and U+2019")
