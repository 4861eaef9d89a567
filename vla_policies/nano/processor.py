"""Observation -> network inputs. The way out (tokens -> env action) is `action_codec.UniformBins`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from vla_gym.errors import BadValue
from vla_gym.observation import MAX_INSTRUCTION_BYTES
from vla_policies.conventions import Conventions
from vla_policies.processing.word_hash import MAX_TOKENS, pad_tokens, tokenize
from vla_policies.types import PolicyInputs


def prepare_inputs(obs: Mapping[str, Tensor], conventions: Conventions) -> PolicyInputs:
    """Tensors of B observations, images `[B, H, W, 3]` or `[B, 3, H, W]` uint8, to `PolicyInputs`.

    The text keeps a fixed length; the network itself drops columns in which every row is padding.
    """
    pixels = [_pixels(obs[key], conventions.image_size, key) for key in conventions.cameras]
    text_BL, mask_BL = _text(obs["instruction"])
    device = pixels[0].device
    return PolicyInputs(
        pixels_BMCHW=pixels[0].unsqueeze(1) if len(pixels) == 1 else torch.stack(pixels, dim=1),
        text_BL=text_BL.to(device),
        text_mask_BL=mask_BL.to(device),
        state_BS=obs["state"].float() if conventions.state_dim else None,
    )


def _pixels(image: Tensor, size: int, key: str) -> Tensor:
    """Uint8 images to float32 `[B, 3, size, size]` in [-1, 1], averaged down or interpolated up."""
    if image.dtype != torch.uint8 or image.ndim != 4 or 3 not in (image.shape[1], image.shape[3]):
        raise BadValue(
            f"'{key}' must be uint8 [B, H, W, 3] or [B, 3, H, W], got {image.dtype} {tuple(image.shape)}"
        )
    if image.shape[3] == 3:
        image = image.permute(0, 3, 1, 2)
    pixels = image.float().mul_(1.0 / 127.5).sub_(1.0)
    if pixels.shape[2:] != (size, size):
        pixels = functional.interpolate(pixels, (size, size), mode="bilinear", antialias=True)
    return pixels


def _text(bytes_BL: Tensor) -> tuple[Tensor, Tensor]:
    """UTF-8 bytes `[B, 160]` to padded ids and mask, each row looked up once per distinct sentence."""
    if bytes_BL.ndim != 2 or bytes_BL.shape[1] != MAX_INSTRUCTION_BYTES:
        raise BadValue(
            f"'instruction' must be bytes [B, {MAX_INSTRUCTION_BYTES}], got {tuple(bytes_BL.shape)}"
        )
    rows = bytes_BL.to("cpu", torch.uint8).numpy()
    ids = [_sentence_ids(row.tobytes()) for row in rows]
    assert all(len(row) <= MAX_TOKENS for row in ids)
    return pad_tokens(ids)


@lru_cache(maxsize=4096)
def _sentence_ids(data: bytes) -> tuple[int, ...]:
    try:
        sentence = data.rstrip(b"\0").decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadValue(f"the instruction is not UTF-8 text: {error}") from error
    return tokenize(sentence)
