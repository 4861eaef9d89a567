"""Instruction (and, for pi0.5, state) -> token ids, as in openpi."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from torch import Tensor

from vla_gym.errors import BadValue
from vla_policies.processing.observations import pad_ids
from vla_policies.processing.tokenizer_files import read_tokenizer
from vla_policies.processing.word_hash import tokenize as hash_words

BOS = 2
NEWLINE = 108
"""PaliGemma's token for "\\n"."""
STATE_BINS = 256
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_REPO = "google/paligemma-3b-pt-224"

Encode = Callable[[str], list[int]]
"""Text to ids, no special tokens."""

_log = logging.getLogger(__name__)


def pi0_text(instruction: str) -> str:
    """pi0's text of an instruction, without the newline, which is a token of its own."""
    return instruction.strip().replace("_", " ").replace("\n", " ")


def pi05_text(instruction: str, state_S: np.ndarray) -> str:
    """pi0.5's text of an instruction and the normalised state in 256 bins over [-1, 1]."""
    bins = " ".join(map(str, state_bins(state_S).tolist()))
    return f"Task: {pi0_text(instruction)}, State: {bins};\nAction: "


def state_bins(state: np.ndarray) -> np.ndarray:
    """Numbers to the index of their bin, 0 .. 255 in [-1, 1]; -1 below."""
    return np.digitize(state, np.linspace(-1.0, 1.0, STATE_BINS + 1)[:-1]) - 1


class PromptTokenizer:
    """Texts to padded ids of a fixed length; longer ones are cut, with a warning, as in the originals."""

    def __init__(self, encode: Encode, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._ids = lru_cache(maxsize=4096)(lambda text, end: (BOS, *encode(text), *end))
        self._warned = False

    def batch(self, texts: Sequence[str], *, newline: bool) -> tuple[Tensor, Tensor]:
        """Ids int64 `[B, max_tokens]`, right padded with 0, and their bool mask."""
        rows = [self._ids(text, (NEWLINE,) if newline else ()) for text in texts]
        for text, row in zip(texts, rows, strict=True):
            if len(row) > self.max_tokens and not self._warned:
                self._warned = True
                _log.warning("prompt of %d tokens cut to %d: %r", len(row), self.max_tokens, text)
        return pad_ids([row[: self.max_tokens] for row in rows], self.max_tokens)


def words_encoder(vocab_size: int) -> Encode:
    """An encoder of hashed words, ids after PaliGemma's special ones; for small random networks."""
    first = NEWLINE + 1
    if vocab_size <= first:
        raise BadValue(f"hashed words need a vocabulary of more than {first} ids, got {vocab_size}")
    return lambda text: [first + word % (vocab_size - first) for word in hash_words(text)]


def paligemma_encoder(folder: Path | None) -> Encode:
    """PaliGemma's tokenizer from the folder's `tokenizer.json`, or from the Hub where the folder has none."""
    path = folder / TOKENIZER_FILE if folder is not None else None
    if path is None or not path.is_file():
        path = _download_tokenizer(folder)
    tokenizer = read_tokenizer(path)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def _download_tokenizer(folder: Path | None) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(hf_hub_download(TOKENIZER_REPO, TOKENIZER_FILE))
    except (HfHubHTTPError, OSError) as error:
        lacking = f"checkpoint folder '{folder}' has no {TOKENIZER_FILE}, and " if folder else ""
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadValue(
            f"{lacking}PaliGemma's could not be fetched from {TOKENIZER_REPO} (a gated repository: accept its "
            f"licence, then `hf auth login`; or put {TOKENIZER_FILE} into the folder): {reason}"
        ) from error
