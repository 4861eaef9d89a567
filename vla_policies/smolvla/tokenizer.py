"""Instruction -> token ids, as lerobot's preprocessor with the vision-language model's tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from vla_gym.errors import BadValue
from vla_gym.reading import read_json_object
from vla_policies.processing.observations import pad_ids
from vla_policies.processing.tokenizer_files import read_tokenizer
from vla_policies.processing.word_hash import tokenize as hash_words

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILE, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TOKENIZER_FILES = (TOKENIZER_FILE, TOKENIZER_CONFIG, "special_tokens_map.json")
"""Files of a tokenizer."""
BRACKETS = ("<fake_token_around_image>", "<global-img>")
"""Names of the tokens of `NetworkShape.image_brackets`."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Encoder:
    """A tokenizer, as far as it is used here."""

    ids: Callable[[str], Sequence[int]]
    """Text to ids."""
    pad: int = 0
    """Id that fills shorter rows."""
    keep_end: bool = False
    """Whether a text that is too long loses its beginning instead of its end."""


class TextTokenizer:
    """Instructions to padded ids of a fixed length; longer ones are cut, with a warning."""

    def __init__(self, encoder: Encoder, max_tokens: int) -> None:
        self.encoder = encoder
        self.max_tokens = max_tokens
        self._ids = lru_cache(maxsize=4096)(self._row)

    def batch(self, instructions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Ids int64 `[B, max_tokens]`, right padded, and their bool mask."""
        return pad_ids([self._ids(text) for text in instructions], self.max_tokens, self.encoder.pad)

    def _row(self, instruction: str) -> Sequence[int]:
        text = instruction if instruction.endswith("\n") else instruction + "\n"
        ids = self.encoder.ids(text)
        if len(ids) <= self.max_tokens:
            return ids
        _log.warning("instruction of %d tokens cut to %d: %r", len(ids), self.max_tokens, instruction)
        return ids[-self.max_tokens :] if self.encoder.keep_end else ids[: self.max_tokens]


def words_encoder(vocab_size: int) -> Encoder:
    """An encoder of hashed words; for small random networks."""
    return Encoder(lambda text: [1 + word % (vocab_size - 1) for word in hash_words(text)])


def folder_encoder(folder: Path) -> Encoder:
    """The tokenizer of a vision-language model's folder; padding and side of truncation are its own."""
    tokenizer = _read(folder)
    settings = read_json_object(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).is_file() else {}
    pad = settings.get("pad_token")
    name = pad.get("content") if isinstance(pad, dict) else pad
    return Encoder(
        ids=lambda text: tokenizer.encode(text).ids,
        pad=(tokenizer.token_to_id(str(name)) if name is not None else None) or 0,
        keep_end=settings.get("truncation_side", "right") == "left",
    )


def bracket_ids(folder: Path) -> tuple[int, int]:
    """Ids of `BRACKETS`; raises `BadValue` where the tokenizer has them not."""
    tokenizer = _read(folder)
    begin, end = (tokenizer.token_to_id(name) for name in BRACKETS)
    if begin is None or end is None:
        raise BadValue(f"'{folder / TOKENIZER_FILE}' lacks the image tokens {', '.join(BRACKETS)}")
    return begin, end


def _read(folder: Path) -> Tokenizer:
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise BadValue(f"'{folder}' has no {TOKENIZER_FILE}; put the vision-language model's there")
    tokenizer = read_tokenizer(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
