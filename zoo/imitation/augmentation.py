"""Random changes to the pictures of fine-tuning: where they begin, their light, contrast and colours.

The shift is DrQ's (Kostrikov et al. 2021, arXiv:2004.13649): up to 4 pixels of 84, edges repeated. The colours' ranges
are those of OpenVLA's fine-tuning (arXiv:2406.09246), without its change of hue: sentences name colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vla_policies.actions.noise import Noise
from vla_policies.transfer import constant

SHIFT = 4 / 84
"""Largest shift, of the picture's side."""
BRIGHTNESS = 0.2
"""Largest number added, of the range of grey levels."""
CONTRAST = 0.2
"""Contrast and saturation are multiplied by 1 plus or minus at most this."""
_GREY = (0.299, 0.587, 0.114)
"""Shares of red, green and blue in a pixel's grey (ITU-R BT.601)."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What is done to each of B pictures."""

    shift_B2: Tensor
    """Pixels down and to the right, int64."""
    brightness_B: Tensor
    """Grey levels added, float32."""
    contrast_B: Tensor
    """Factor of each pixel's distance from the picture's mean colour, float32."""
    saturation_B: Tensor
    """Factor of each colour's distance from its pixel's grey, float32."""


def augmented(obs: Mapping[str, Tensor], cameras: Sequence[str], noise: Noise) -> dict[str, Tensor]:
    """Observations of B frames, the pictures of `cameras` (uint8 `[B, H, W, 3]`) changed, each by draws of its own."""
    return {key: changed(value, draw_changes(noise, value)) if key in cameras else value for key, value in obs.items()}


def draw_changes(noise: Noise, image_BHW3: Tensor) -> Changes:
    """Changes of each picture, uniform in their ranges."""
    num, height, width, _ = image_BHW3.shape
    uniform_B5 = noise.uniform(num, 5, device=image_BHW3.device)
    reach_2 = constant((round(SHIFT * height), round(SHIFT * width)), torch.int64, image_BHW3.device)
    shift_B2 = (uniform_B5[:, :2] * (2 * reach_2 + 1)).long() - reach_2
    symmetric_3B = (2.0 * uniform_B5[:, 2:] - 1.0).float().T
    return Changes(
        shift_B2=shift_B2,
        brightness_B=255.0 * BRIGHTNESS * symmetric_3B[0],
        contrast_B=1.0 + CONTRAST * symmetric_3B[1],
        saturation_B=1.0 + CONTRAST * symmetric_3B[2],
    )


def changed(image_BHW3: Tensor, changes: Changes) -> Tensor:
    """Shift, then brightness, contrast and saturation; rounded and cut to 0 .. 255 once, at the end."""
    if image_BHW3.dtype != torch.uint8 or image_BHW3.ndim != 4 or image_BHW3.shape[3] != 3:
        raise ValueError(f"pictures must be uint8 [B, H, W, 3], got {image_BHW3.dtype} {image_BHW3.shape}")
    moved = shifted(image_BHW3, changes.shift_B2).float() + _each(changes.brightness_B)
    mean_B113 = moved.mean(dim=(1, 2), keepdim=True)
    contrasted = mean_B113 + _each(changes.contrast_B) * (moved - mean_B113)
    grey_BHW1 = (contrasted * constant(_GREY, moved.dtype, moved.device)).sum(dim=3, keepdim=True)
    coloured = grey_BHW1 + _each(changes.saturation_B) * (contrasted - grey_BHW1)
    return coloured.round().clamp(0, 255).to(torch.uint8)


def shifted(image_BHWC: Tensor, shift_B2: Tensor) -> Tensor:
    """Each picture moved by its (down, right) pixels; what comes into view repeats the edge."""
    num, height, width, _ = image_BHWC.shape
    device = image_BHWC.device
    row_BH = (torch.arange(height, device=device) - shift_B2[:, :1]).clamp(0, height - 1)
    column_BW = (torch.arange(width, device=device) - shift_B2[:, 1:]).clamp(0, width - 1)
    picture_B = torch.arange(num, device=device)
    return image_BHWC[picture_B[:, None, None], row_BH[:, :, None], column_BW[:, None, :]]


def _each(number_B: Tensor) -> Tensor:
    return number_B[:, None, None, None]
