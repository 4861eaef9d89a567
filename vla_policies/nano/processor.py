"""Observation -> network inputs. The inverse direction (tokens -> env action) is `actions.codec.UniformBins`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from vla_policies.conventions import Conventions
from vla_policies.processing.images import channels_last
from vla_policies.processing.observations import decode_instructions, pad_ids
from vla_policies.processing.word_hash import MAX_TOKENS, tokenize
from vla_policies.transfer import upload
from vla_policies.types import PolicyInputs


def prepare_inputs(obs: Mapping[str, Tensor], conventions: Conventions) -> PolicyInputs:
    """Tensors of B observations, images `[B, H, W, 3]` or `[B, 3, H, W]` uint8, to `PolicyInputs`.

    The text keeps a fixed length; the network drops columns in which every row is padding.
    """
    pixels = [_pixels(obs[key], conventions.image_size, key) for key in conventions.cameras]
    sentences = decode_instructions(obs["instruction"])
    text_BL, mask_BL = pad_ids([tokenize(sentence) for sentence in sentences], MAX_TOKENS)
    device = pixels[0].device
    return PolicyInputs(
        pixels_BMCHW=pixels[0].unsqueeze(1) if len(pixels) == 1 else torch.stack(pixels, dim=1),
        text_BL=upload(text_BL, device),
        text_mask_BL=mask_BL,
        state_BS=upload(obs["state"].float(), device) if conventions.state_dim else None,
    )


def _pixels(image: Tensor, size: int, key: str) -> Tensor:
    """Uint8 images to float32 `[B, 3, size, size]` in [-1, 1], averaged down or interpolated up."""
    pixels = channels_last(image, key).permute(0, 3, 1, 2).float().mul_(1.0 / 127.5).sub_(1.0)
    if pixels.shape[2:] != (size, size):
        pixels = functional.interpolate(pixels, (size, size), mode="bilinear", antialias=True)
    return pixels
