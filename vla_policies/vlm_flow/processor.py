"""Observation -> network inputs, denoised actions -> environment actions: what pi0's and SmolVLA's processors share."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from vla_gym.errors import BadValue
from vla_policies.conventions import Conventions
from vla_policies.devices import upload
from vla_policies.processing.observations import decode_instructions, pad_ids, tokenize
from vla_policies.types import PolicyInputs
from vla_policies.vlm_flow.config import FlowPreprocessing, FlowShape

Encode = Callable[[str], Sequence[int]]
"""Text to ids."""

_log = logging.getLogger(__name__)


class TextTokenizer:
    """Texts to padded ids of a fixed length; longer ones are cut, with one warning, as in the originals.

    :param keep_end: whether a text that is too long loses its beginning instead of its end.
    """

    def __init__(self, encode: Encode, max_tokens: int, *, pad: int = 0, keep_end: bool = False) -> None:
        self.max_tokens = max_tokens
        self._encode = lru_cache(maxsize=4096)(encode)
        self._pad = pad
        self._keep_end = keep_end
        self._warned = False

    def batch(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Ids int64 `[B, max_tokens]`, right padded, and their bool mask."""
        return pad_ids([self._row(text) for text in texts], self.max_tokens, self._pad)

    def _row(self, text: str) -> Sequence[int]:
        ids = self._encode(text)
        if len(ids) > self.max_tokens and not self._warned:
            self._warned = True
            _log.warning("prompt of %d tokens cut to %d: %r", len(ids), self.max_tokens, text)
        return ids[-self.max_tokens :] if self._keep_end else ids[: self.max_tokens]


def words_encoder(first: int, vocab_size: int) -> Encode:
    """An encoder of hashed words, ids from `first` on; for small random networks."""
    return lambda text: [first + word % (vocab_size - first) for word in tokenize(text)]


class FlowProcessor(ABC):
    """Preprocessing and postprocessing of one checkpoint; subclasses implement `pixels`.

    Cameras that the conventions do not name have no tokens, which equals the masked tokens of the originals.
    """

    def __init__(
        self, conventions: Conventions, preprocessing: FlowPreprocessing, shape: FlowShape, tokenizer: TextTokenizer
    ) -> None:
        self.conventions = conventions
        self.preprocessing = preprocessing
        self.shape = shape
        self.tokenizer = tokenizer
        if conventions.state_dim > shape.state_width:
            raise BadValue(f"the network reads {shape.state_width} numbers of state, got {conventions.state_dim}")

    @abstractmethod
    def pixels(self, image: Tensor, key: str) -> Tensor:
        """Uint8 images to float32 `[B, 3, size, size]` in [-1, 1]."""

    def texts(self, instructions: Sequence[str], state_BS: Tensor) -> Sequence[str]:
        """Texts of B observations, given their normalised states."""
        return instructions

    def prepare(self, obs: Mapping[str, Tensor]) -> PolicyInputs:
        """Tensors of B observations to inputs; the state is normalised and padded, `[B, state_width]`."""
        pixels = [self.pixels(obs[key], key) for key in self.conventions.cameras]
        device = pixels[0].device
        state_BS = torch.zeros(len(pixels[0]), 0)
        if self.conventions.state_dim:
            state_BS = self.preprocessing.normalise(obs["state"].cpu().float(), "state")
        text_BL, mask_BL = self.tokenizer.batch(self.texts(decode_instructions(obs["instruction"]), state_BS))
        return PolicyInputs(
            pixels_BMCHW=torch.stack(pixels, dim=1),
            text_BL=upload(text_BL, device),
            text_mask_BL=mask_BL,
            state_BS=upload(self.padded(state_BS), device),
        )

    def padded(self, state_BS: Tensor) -> Tensor:
        """Normalised states with zeros up to `state_width`."""
        return functional.pad(state_BS, (0, self.shape.state_width - state_BS.shape[1]))

    def to_env(self, x_BHD: Tensor, inputs: PolicyInputs) -> Tensor:
        """Denoised chunks to environment actions, float32 `[B, K, A]`, cut to [-1, 1]."""
        return self.to_robot(x_BHD)[:, : self.conventions.chunk].clamp(-1.0, 1.0)

    def to_robot(self, x_BHD: Tensor) -> Tensor:
        """Denoised actions in the units of the data, `[B, H, A]`."""
        return self.preprocessing.unnormalise(x_BHD[..., : self.conventions.action_dim], "action")

    def from_env(self, action_BKA: Tensor, inputs: PolicyInputs) -> Tensor:
        """Environment actions to the network's units, `[B, K, A]`: inverse of `to_env`."""
        return self.preprocessing.normalise(action_BKA, "action")
