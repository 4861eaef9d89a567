"""A caller's observations -> batched tensors, and their words -> token ids: by tokenizers that others wrote, or hashed,
which needs no vocabulary; or -> frozen vectors of word pieces, WordLlama's.

A hashed word's id has 20 bits and each half is a row of a table of 1024, so two words are confused only when all 20
bits agree (one pair in a million) although the tables stay small. Ids are the same in every process and version.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from torch import Tensor

from vla_gym.errors import BadValue, MissingDependency, shortened, shown, unknown_name
from vla_gym.observation import decode_instruction, encode_instruction
from vla_gym.reading import read_text
from vla_policies.conventions import Conventions
from vla_policies.devices import upload

SEEN = "seen"
"""Of the record of a decision, where features are kept: the `observation_keys` of what it was made for."""
HOST_KEYS = ("instruction", "state", SEEN)
"""Parts that are read on the CPU: words become tokens there, and a state may become words."""
MOST_BYTES = 64 * 2**20
"""Largest tokenizer file that is read; PaliGemma's, with 257,152 pieces, has 17 MB."""
HALF_BITS = 10
"""Bits of each half of an id."""
MAX_TOKENS = 80
"""L, most words of an instruction. Checkpoints hold a vector for each place."""
WORD_DIMS = 256
"""F, numbers of a vector of WordLlama's."""

_WORD = re.compile(r"\w+")


def batch_observation(obs: object, conventions: Conventions) -> tuple[dict[str, Tensor], bool]:
    """The policy's inputs as tensors `[B, ...]`, images where they were, and whether `obs` is a batch.

    `instruction` may be a `str`, a sequence of `str`, or UTF-8 bytes `[352]` / `[B, 352]`. Raises `BadValue`
    or `UnknownName` naming the key that is missing or of the wrong rank.
    """
    if not isinstance(obs, Mapping):
        raise BadValue(f"an observation is a dict with 'image' and 'instruction', got {type(obs).__name__}")
    ranks = dict.fromkeys(conventions.cameras, 3)
    if conventions.state_dim:
        ranks["state"] = 1
    ranks["instruction"] = 1
    tensors: dict[str, Tensor] = {}
    batched: dict[str, bool] = {}
    for key, rank in ranks.items():
        if key not in obs:
            raise unknown_name("observation key", key, obs)
        value = _instruction_bytes(obs[key]) if key == "instruction" else obs[key]
        tensor = torch.as_tensor(value)
        tensor = tensor.cpu() if key in HOST_KEYS else tensor
        batched[key] = tensor.ndim == rank + 1
        tensors[key] = tensor if batched[key] else tensor[None]
        if tensors[key].ndim != rank + 1:
            raise BadValue(f"'{key}' must have {rank} dims (one observation) or {rank + 1}, got {tuple(tensor.shape)}")
    sizes = {key: len(tensor) for key, tensor in tensors.items()}
    if len(set(batched.values())) > 1 or len(set(sizes.values())) > 1:
        raise BadValue(f"the observation's parts are not of one batch: {sizes}, batched: {batched}")
    state, dims = tensors.get("state"), conventions.state_dim
    if state is not None and (state.shape[1] != dims or not torch.isfinite(state).all()):
        raise BadValue(f"'state' must have {dims} finite numbers, got {shown(state.tolist())}")
    return tensors, batched["instruction"]


def on_device(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The batch with all but `HOST_KEYS` on `device`."""
    return {key: x if key in HOST_KEYS else upload(x, device) for key, x in batch.items()}


def observation_keys(batch: Mapping[str, Tensor]) -> Tensor:
    """A digest of each of the B observations of a batch `[B, ...]`: of its bytes, 128 bits, int64 `[B, 2]`."""
    arrays = [batch[name].cpu().contiguous().numpy() for name in sorted(batch)]
    keys = bytearray()
    for row in zip(*arrays, strict=True):
        digest = hashlib.blake2b(digest_size=16)
        for array in row:
            digest.update(array)
        keys += digest.digest()
    return torch.frombuffer(keys, dtype=torch.int64).view(-1, 2)


def channels_last(image: Tensor, key: str) -> Tensor:
    """Uint8 `[B, H, W, 3]` from that or `[B, 3, H, W]`; anything else raises `BadValue` naming `key`."""
    if image.dtype != torch.uint8 or image.ndim != 4 or 3 not in (image.shape[1], image.shape[3]):
        raise BadValue(f"'{key}' must be uint8 [B, H, W, 3] or [B, 3, H, W], got {image.dtype} {tuple(image.shape)}")
    return image if image.shape[3] == 3 else image.permute(0, 2, 3, 1)


def decode_instructions(bytes_BL: Tensor) -> list[str]:
    """Instructions of B observations, from their UTF-8 bytes `[B, 160]`."""
    try:
        return [decode_instruction(row) for row in bytes_BL.to("cpu", torch.uint8).numpy()]
    except UnicodeDecodeError as error:
        raise BadValue(f"the instruction is not UTF-8 text: {error}") from error


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
    """Ids of the words of `text`, case folded, punctuation dropped.

    Raises `BadValue` when there is none, or more than `MAX_TOKENS`.
    """
    words = _WORD.findall(text.casefold())
    if not 1 <= len(words) <= MAX_TOKENS:
        raise BadValue(f"the instruction {shown(text)} holds {len(words)} words; it must have 1 to {MAX_TOKENS}")
    return tuple(word_id(word) for word in words)


@lru_cache(maxsize=4096)
def word_vectors(text: str) -> np.ndarray:
    """Float32 `[L, 256]` of the pieces of `text`, case folded; those after the first 80 are left out.

    WordLlama (https://github.com/dleemiller/WordLlama, MIT) has 256 numbers for each of Llama 2's 32,000 pieces,
    trained so that the mean over a sentence is close to that of a sentence of like meaning. Raises `BadValue` where
    there is no word, `MissingDependency` without its package; nothing is downloaded.
    """
    tokenize(text)
    pieces, table_VF = _wordllama()
    ids = pieces.encode(text.casefold(), add_special_tokens=False).ids[:MAX_TOKENS]
    return table_VF[ids].astype(np.float32)


@lru_cache
def _wordllama() -> tuple[Tokenizer, np.ndarray]:
    folder = wordllama_folder()
    pieces = read_tokenizer(folder / "tokenizers" / "l2_supercat_tokenizer_config.json")
    return pieces, load_file(folder / "weights" / "l2_supercat_256.safetensors")["embedding.weight"]


def wordllama_folder() -> Path:
    """Return the folder of WordLlama's package; raises `MissingDependency` where there is none."""
    found = importlib.util.find_spec("wordllama")  # not imported: that would set up logging
    if found is None or found.origin is None:
        raise MissingDependency(
            "the policy reads words through wordllama, not installed here. Install with: pip install 'vla-zoo[words]'"
        )
    return Path(found.origin).parent


def _instruction_bytes(value: object) -> object:
    if isinstance(value, np.ndarray) and value.dtype.kind in "OU":
        value = value.tolist()
    if isinstance(value, str):
        return encode_instruction(value)
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return np.stack([encode_instruction(item) for item in value])
    return value
