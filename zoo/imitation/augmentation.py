"""Random changes to what is learned from: where images begin, their light, contrast and colours; and other words.

The shift is DrQ's (Kostrikov et al. 2021, arXiv:2004.13649): up to 4 pixels of 84, edges repeated. The colours' ranges
are those of OpenVLA's fine-tuning (arXiv:2406.09246), without its change of hue: sentences name colours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vla_gym.errors import BadValue, shown, unknown_name
from vla_gym.observation import encode_instruction
from vla_policies.actions.noise import Noise
from vla_policies.devices import constant
from zoo.yaml_text import read_yaml_mapping

SHIFT = 4 / 84
"""Largest shift, of the image's side."""
BRIGHTNESS = 0.2
"""Largest number added, of the range of grey levels."""
CONTRAST = 0.2
"""Contrast and saturation are multiplied by 1 plus or minus at most this."""
_GREY = (0.299, 0.587, 0.114)
"""Shares of red, green and blue in a pixel's grey (ITU-R BT.601)."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Changes of each of B images."""

    shift_B2: Tensor
    """Pixels down and to the right, int64."""
    brightness_B: Tensor
    """Grey levels added, float32."""
    contrast_B: Tensor
    """Factor of each pixel's distance from the image's mean colour, float32."""
    saturation_B: Tensor
    """Factor of each colour's distance from its pixel's grey, float32."""


def augmented(obs: Mapping[str, Tensor], cameras: Sequence[str], noise: Noise) -> dict[str, Tensor]:
    """Return observations of B frames, the images of `cameras` (uint8 `[B, H, W, 3]`) changed, each on its own."""
    return {key: changed(value, draw_changes(noise, value)) if key in cameras else value for key, value in obs.items()}


def draw_changes(noise: Noise, image_BHW3: Tensor) -> Changes:
    """Draw the changes of each image, uniform in their ranges."""
    num, height, width, _ = image_BHW3.shape
    uniform_B5 = noise.uniform(num, 5, device=image_BHW3.device)
    reach_2 = constant((round(SHIFT * height), round(SHIFT * width)), torch.int64, image_BHW3.device)
    symmetric_3B = (2.0 * uniform_B5[:, 2:] - 1.0).float().T
    return Changes(
        shift_B2=(uniform_B5[:, :2] * (2 * reach_2 + 1)).long() - reach_2,
        brightness_B=255.0 * BRIGHTNESS * symmetric_3B[0],
        contrast_B=1.0 + CONTRAST * symmetric_3B[1],
        saturation_B=1.0 + CONTRAST * symmetric_3B[2],
    )


def changed(image_BHW3: Tensor, changes: Changes) -> Tensor:
    """Shift uint8 images, then change brightness, contrast and saturation; round and cut to 0 .. 255 at the end."""
    brightness, contrast, saturation = (
        number_B[:, None, None, None] for number_B in (changes.brightness_B, changes.contrast_B, changes.saturation_B)
    )
    moved = shifted(image_BHW3, changes.shift_B2).float() + brightness
    mean_B113 = moved.mean(dim=(1, 2), keepdim=True)
    contrasted = mean_B113 + contrast * (moved - mean_B113)
    grey_BHW1 = (contrasted * constant(_GREY, moved.dtype, moved.device)).sum(dim=3, keepdim=True)
    coloured = grey_BHW1 + saturation * (contrasted - grey_BHW1)
    return coloured.round().clamp(0, 255).to(torch.uint8)


def shifted(image_BHWC: Tensor, shift_B2: Tensor) -> Tensor:
    """Return each image moved by its (down, right) pixels; what comes into view repeats the edge."""
    num, height, width, _ = image_BHWC.shape
    device = image_BHWC.device
    row_BH = (torch.arange(height, device=device) - shift_B2[:, :1]).clamp(0, height - 1)
    column_BW = (torch.arange(width, device=device) - shift_B2[:, 1:]).clamp(0, width - 1)
    image_B = torch.arange(num, device=device)
    return image_BHWC[image_B[:, None, None], row_BH[:, :, None], column_BW[:, None, :]]


@dataclass(frozen=True)
class Paraphrases:
    """S sentences, each with up to M - 1 others, as the bytes of an observation (L of them)."""

    choices_SML: Tensor
    """Uint8; the sentence itself first, zeros after the last."""
    number_S: Tensor
    """Choices of each, int64."""

    def drawn(self, instruction_BL: Tensor, noise: Noise) -> Tensor:
        """Return uint8 `[B, L]`: for each sentence one of its choices, all equally likely; other sentences stay."""
        choices_SML, number_S = (one.to(instruction_BL.device) for one in (self.choices_SML, self.number_S))
        same_BS = (instruction_BL[:, None] == choices_SML[:, 0]).all(dim=2)
        sentence_B = same_BS.long().argmax(dim=1)
        number_B = number_S[sentence_B]
        uniform_B = noise.uniform(len(instruction_BL), 1, device=instruction_BL.device)[:, 0]
        choice_B = (uniform_B * number_B).long().clamp(max=number_B - 1)
        return torch.where(same_BS.any(dim=1, keepdim=True), choices_SML[sentence_B, choice_B], instruction_BL)


def read_paraphrases(path: Path, known: Collection[str]) -> Paraphrases:
    """Read a YAML file of taught sentence -> other sentences; raise `BadValue` for anything else.

    `known` are the sentences of demonstrations and tasks; another taught one is misspelt.
    """
    where = f"--paraphrases {path}"
    choices = []
    for sentence, others in read_yaml_mapping(path, "sentences to lists of sentences", where).items():
        if not isinstance(others, list) or not all(isinstance(one, str) for one in others):
            raise BadValue(f"{where}: {shown(sentence)} must have a list of sentences, got {shown(others)}")
        if sentence not in known:
            raise unknown_name("sentence of the demonstrations or tasks", sentence, known)
        choices.append([torch.from_numpy(encode_instruction(one)) for one in (sentence, *others)])
    most = max(map(len, choices), default=0)
    if not most:
        raise BadValue(f"{where} has no sentences")
    rows = [torch.stack([*row, *[torch.zeros_like(row[0])] * (most - len(row))]) for row in choices]
    return Paraphrases(torch.stack(rows), torch.tensor([len(row) for row in choices]))
