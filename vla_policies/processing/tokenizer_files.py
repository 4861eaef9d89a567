"""A `tokenizer.json` that others wrote, opened: whatever is wrong with it is one error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vla_gym.errors import BadValue, shortened
from vla_gym.reading import read_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_BYTES = 64 * 2**20
"""Largest file that is read; PaliGemma's, with 257,152 pieces, has 17 MB."""
_MOST_SHOWN = 200


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer in a file; raises `BadValue` where there is none."""
    return parse_tokenizer(read_text(path, most=MOST_BYTES), path)


def parse_tokenizer(text: str, where: object) -> Tokenizer:
    """Return the tokenizer that `text` describes; raises `BadValue` for anything else, naming `where` it comes from."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(text)
    except BaseException as error:
        # The library raises bare Exception for every fault of the file, and panics, which are no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise BadValue(f"'{where}' cannot be read as a tokenizer: {shortened(str(error), _MOST_SHOWN)}") from error
