"""The one observation layout: its keys, shapes and Gymnasium spaces, and the instruction's encoding as bytes.

image        uint8   [H, W, 3]   main camera
wrist_image  uint8   [H, W, 3]   only when asked for
state        float32 [S]         only when the benchmark has one
privileged   float64 [P]         only when asked for: what scripted experts read, never for policies
instruction  text                always, never empty
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium import spaces

from vla_gym.errors import BadValue, shown

SMALLEST_IMAGE, LARGEST_IMAGE = 8, 2048
"""Smallest and largest allowed side of an image, pixels."""
MAX_INSTRUCTION_BYTES = 352
"""Length of an encoded instruction; the longest one, of LIBERO-Plus, has 331."""
INSTRUCTION_CHARSET = frozenset(string.ascii_letters + string.digits + string.punctuation + " \u2019\u00e9")
"""Printable ASCII plus the curly apostrophe (U+2019) and the accented e (U+00E9) that some benchmarks write."""


@dataclass(frozen=True, kw_only=True)
class ObservationLayout:
    """Observation of one sub-environment; parent and workers build their buffers from the same layout."""

    cameras: tuple[str, ...]
    """Keys of the images, main camera first."""
    image_size: int
    """Side of every image, pixels."""
    state_dim: int
    """S; 0 leaves the key `state` out."""
    privileged_dim: int = 0
    """P; 0 leaves the key `privileged` out."""

    def arrays(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of each array of one observation (everything but the instruction)."""
        image = ((self.image_size, self.image_size, 3), np.dtype(np.uint8))
        fields: dict[str, tuple[tuple[int, ...], np.dtype]] = dict.fromkeys(self.cameras, image)
        if self.state_dim:
            fields["state"] = ((self.state_dim,), np.dtype(np.float32))
        if self.privileged_dim:
            fields["privileged"] = ((self.privileged_dim,), np.dtype(np.float64))
        return fields

    def space(self) -> spaces.Dict:
        """Space of one observation, the instruction as text."""
        text = spaces.Text(MAX_INSTRUCTION_BYTES, min_length=1, charset=INSTRUCTION_CHARSET)
        return spaces.Dict({**self._array_spaces(), "instruction": text})

    def bytes_space(self) -> spaces.Dict:
        """The same with the instruction as uint8 `[MAX_INSTRUCTION_BYTES]`, for libraries that take arrays only."""
        encoded = spaces.Box(0, 255, (MAX_INSTRUCTION_BYTES,), np.uint8)
        return spaces.Dict({**self._array_spaces(), "instruction": encoded})

    def _array_spaces(self) -> dict[str, spaces.Space]:
        fields: dict[str, spaces.Space] = {}
        for key, (shape, dtype) in self.arrays().items():
            low, high = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
            fields[key] = spaces.Box(low, high, shape, dtype.type)
        return fields


def encode_instruction(text: str) -> np.ndarray:
    """Text -> UTF-8 bytes, zero padded: uint8 `[MAX_INSTRUCTION_BYTES]`; `decode_instruction` inverts it.

    Raises `BadValue` for what is no text, and for one that is empty, too long, or holds a zero byte.
    """
    data = text.encode("utf-8") if isinstance(text, str) else b""
    if not 1 <= len(data) <= MAX_INSTRUCTION_BYTES or 0 in data:
        raise BadValue(
            f"an instruction is a text of 1 to {MAX_INSTRUCTION_BYTES} UTF-8 bytes without a zero byte, which marks "
            f"the padding; instruction {shown(text)} has {len(data)} UTF-8 bytes"
        )
    out = np.zeros(MAX_INSTRUCTION_BYTES, dtype=np.uint8)
    out[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    return out


def encode_instructions(obs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return a batched observation with its instructions encoded, uint8 `[N, MAX_INSTRUCTION_BYTES]`."""
    return {**obs, "instruction": np.stack([_encoded(text) for text in obs["instruction"]])}


_encoded = lru_cache(maxsize=4096)(encode_instruction)


def decode_instruction(data: np.ndarray) -> str:
    """Uint8 `[MAX_INSTRUCTION_BYTES]` (any integer dtype or float with whole values) -> text."""
    raw = np.asarray(data)
    if raw.ndim != 1:
        raise BadValue(f"one encoded instruction is a vector of bytes, got shape {raw.shape}")
    return raw.astype(np.uint8).tobytes().rstrip(b"\0").decode("utf-8")


def check_instruction(text: str) -> None:
    """Raise `BadValue` unless `text` fits the observation's text space and its encoded form."""
    encode_instruction(text)
    strange = sorted(set(text) - INSTRUCTION_CHARSET)
    if strange:
        raise BadValue(f"instruction {shown(text)} holds {strange}; allowed are printable ASCII, U+2019 and U+00E9")
