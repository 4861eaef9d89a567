"""Observation -> network inputs, action tokens -> environment actions, for OpenVLA and OpenVLA-OFT.

All differences between checkpoints are in `Settings`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from vla_gym.errors import BadValue, shown
from vla_gym.specs import ActionSpec
from vla_policies.actions.sampling import TableBins
from vla_policies.checkpoint_io.json_records import as_annotated
from vla_policies.conventions import Conventions
from vla_policies.devices import constant, upload
from vla_policies.openvla.config import NUM_BINS, PREPROCESSOR_FILE, TOKENIZER_FILE, OpenVLAConfig
from vla_policies.openvla.jpeg import jpeg_round_trip
from vla_policies.processing.images import crop_center, pad_to_square, resize_bicubic, resize_lanczos3
from vla_policies.processing.observations import channels_last, decode_instructions, pad_ids, parse_tokenizer
from vla_policies.processing.statistics import Normaliser, identity, normaliser
from vla_policies.types import PolicyInputs

BOS = 1
BOS_PIECE = "<s>"
SPACE = 29871
"""Llama's piece for a lone space, between "Out:" and the first action in the training text."""
_FIRST_BYTE = 3
"""Id of the byte 0 in Llama's vocabulary."""


OPENVLA = "In: What action should the robot take to {}?\nOut:"
VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the user's questions. USER: What action should the robot take to {}? ASSISTANT:"
)
"""The prompt of openvla-v01-7b, whose language model is Vicuna (openvla c8f03f48, `vla-scripts/deploy.py`)."""


def template_of(official: Mapping[str, Any]) -> str:
    """The prompt's template for a checkpoint with this `config.json`."""
    names = (str(official.get(key, "")).lower() for key in ("llm_backbone_id", "hf_llm_id"))
    return VICUNA if any("vicuna" in name for name in names) else OPENVLA


def openvla_prompt(instruction: str, template: str = OPENVLA) -> str:
    """The prompt for an instruction."""
    return template.format(instruction.lower())


RGB = tuple[float, float, float]


@dataclass(frozen=True)
class PixelStatistics:
    """Pixel normalisation of one tower."""

    mean: RGB
    """Per channel, of values in [0, 1]."""
    std: RGB
    fill: tuple[int, int, int] | None
    """Colour of the border that makes an image square; None = stretched."""


class OpenVLAProcessor:
    """Preprocessing and postprocessing of one checkpoint.

    :param where: names the checkpoint in errors.
    """

    def __init__(self, config: OpenVLAConfig, conventions: Conventions, where: str) -> None:
        self.config = config
        self.conventions = conventions
        self.tokenizer = PromptTokenizer(
            config.files.get(TOKENIZER_FILE, ""), f"{TOKENIZER_FILE} of {where}", template_of(config.official)
        )
        self.pixel_statistics = pixel_statistics(config, where)
        self.action_normaliser = _action_normaliser(config, conventions.action_dim, where)
        self.state_normaliser = (
            _normaliser(config, "proprio", conventions.state_dim, where) if conventions.state_dim else None
        )
        unit_AV = self.action_normaliser.unnormalise(bin_centres()[:, None]).T
        value_AV = environment_actions(unit_AV, config, conventions.action_spec)
        # Many tokens close a gripper; imitation uses that of the data's number for closed.
        data_AV = data_actions(value_AV, config, conventions.action_spec)
        self.codec = TableBins(value_AV, np.abs(unit_AV - data_AV))

    def prepare(self, obs: Mapping[str, Tensor]) -> PolicyInputs:
        pixels = [self.pixels(obs[key], key) for key in self.conventions.cameras]
        text_BL, mask_BL = self.tokenizer.batch(decode_instructions(obs["instruction"]), self.config.pad_id)
        device = pixels[0].device
        return PolicyInputs(
            pixels_BMCHW=torch.stack(pixels, dim=1),
            text_BL=upload(text_BL, device),
            text_mask_BL=mask_BL,
            state_BS=upload(self._state(obs["state"]), device) if self.state_normaliser is not None else None,
        )

    def pixels(self, image: Tensor, key: str) -> Tensor:
        """Uint8 images to float32 `[B, 3 per tower, H, W]`, normalised for each tower."""
        image_BHWC = self.camera_image(channels_last(image, key))
        size, statistics = self.config.image_size, self.pixel_statistics
        fills = {tower.fill for tower in statistics}
        resized = {fill: _resized(image_BHWC, fill, size) for fill in fills}
        if len(fills) == 1:
            unit_BTCHW = resized[statistics[0].fill][:, None]
        else:
            unit_BTCHW = torch.stack([resized[tower.fill] for tower in statistics], dim=1)
        mean, std = (
            constant(numbers, torch.float32, image.device)[:, :, None, None]
            for numbers in (tuple(tower.mean for tower in statistics), tuple(tower.std for tower in statistics))
        )
        return ((unit_BTCHW - mean) / std).flatten(1, 2)

    def camera_image(self, image_BHWC: Tensor) -> Tensor:
        """The evaluation scripts' steps before the model's own processor, uint8."""
        settings, size = self.config.settings, self.config.image_size
        if settings.camera_resize != "bicubic" and tuple(image_BHWC.shape[1:3]) != (size, size):
            if settings.camera_resize == "jpeg_lanczos3":
                image_BHWC = jpeg_round_trip(image_BHWC)
            image_BHWC = resize_lanczos3(image_BHWC, size, size)
        return crop_center(image_BHWC, size, size) if settings.center_crop else image_BHWC

    def numbers_to_actions(self, number_BKA: Tensor) -> Tensor:
        """Numbers in [-1, 1] of a regression head to environment actions, float32."""
        chosen = self.config.settings.action_dims
        numbers = number_BKA if chosen is None else number_BKA[..., list(chosen)]
        units = self.action_normaliser.unnormalise(numbers.float().cpu().numpy())
        flat = environment_actions(units.reshape(-1, units.shape[-1]).T, self.config, self.conventions.action_spec)
        return torch.from_numpy(flat.T.reshape(units.shape)).float().to(number_BKA.device)

    def _state(self, state_BS: Tensor) -> Tensor:
        assert self.state_normaliser is not None
        return torch.from_numpy(self.state_normaliser.normalise(state_BS.cpu().double().numpy())).float()


def _resized(image_BHWC: Tensor, fill: tuple[int, int, int] | None, size: int) -> Tensor:
    image_BHWC = image_BHWC if fill is None else pad_to_square(image_BHWC, fill)
    return resize_bicubic(image_BHWC, size, size).permute(0, 3, 1, 2).float() / 255.0


def bin_centres() -> np.ndarray:
    """Numbers of the action tokens in [-1, 1], ids ascending, float64 `[256]`.

    256 edges make 255 centres; larger ids are smaller numbers, and the two smallest ids share the largest.
    """
    edges = np.linspace(-1.0, 1.0, NUM_BINS)
    centres = (edges[:-1] + edges[1:]) / 2.0
    return centres[np.clip(NUM_BINS - 1 - np.arange(NUM_BINS), 0, NUM_BINS - 2)]


def environment_actions(unit_AX: np.ndarray, config: OpenVLAConfig, spec: ActionSpec | None) -> np.ndarray:
    """Numbers in the data set's units, dims first, to environment actions, clipped to [-1, 1]."""
    out_AX = unit_AX.copy()
    if config.settings.gripper == "zero_to_one_opens":
        opening = 2.0 * out_AX[-1] - 1.0
        opening = np.sign(opening) if config.settings.binarize_gripper else opening
        out_AX[-1] = opening * _opening_sign(spec)
    return np.clip(out_AX, -1.0, 1.0)


def data_actions(action_AX: np.ndarray, config: OpenVLAConfig, spec: ActionSpec | None) -> np.ndarray:
    """Environment actions, dims first, in the data set's units: inverse of `environment_actions`."""
    out_AX = action_AX.copy()
    if config.settings.gripper == "zero_to_one_opens":
        out_AX[-1] = (out_AX[-1] * _opening_sign(spec) + 1.0) / 2.0
    return out_AX


def _opening_sign(spec: ActionSpec | None) -> float:
    return -1.0 if spec is not None and spec.gripper == "plus_one_closes" else 1.0


def pixel_statistics(config: OpenVLAConfig, where: str) -> tuple[PixelStatistics, ...]:
    """Pixel normalisation of each tower from `preprocessor_config.json`, where `tvf_*` lists take precedence."""
    values, file = config.preprocessor, f"{PREPROCESSOR_FILE} of {where}"
    strategy = values.get("image_resize_strategy", "resize-naive")
    if strategy not in ("resize-naive", "letterbox"):
        raise BadValue(f"{file}: image_resize_strategy must be resize-naive or letterbox, got '{strategy}'")
    given: list[Any] = values.get("tvf_normalize_params") or [
        {"mean": mean, "std": std} for mean, std in zip(values["means"], values["stds"], strict=True)
    ]
    found = []
    for index, (entry, _) in enumerate(zip(given, config.towers, strict=True)):
        fill = tuple(int(255 * x) for x in values["means"][index]) if strategy == "letterbox" else None
        mean, std = (as_annotated(RGB, entry[name], f"{name} of {file}") for name in ("mean", "std"))
        found.append(PixelStatistics(mean, std, fill))  # type: ignore[arg-type]
    return tuple(found)


def _action_normaliser(config: OpenVLAConfig, action_dim: int, where: str) -> Normaliser:
    whole, chosen = _normaliser(config, "action", config.numbers_of(action_dim), where), config.settings.action_dims
    if chosen is None:
        return whole
    dims = list(chosen)
    return Normaliser(whole.low_A[dims], whole.high_A[dims], whole.mask_A[dims], whole.epsilon)


def _normaliser(config: OpenVLAConfig, part: str, dims: int, where: str) -> Normaliser:
    if config.unnorm_key is None:
        return identity(dims)
    settings = config.settings
    found = normaliser(
        config.statistics,
        config.unnorm_key,
        part,
        where,
        bounds=settings.bounds,
        epsilon=settings.width_epsilon,
    )
    if len(found.low_A) != dims:
        raise BadValue(
            f"statistics '{config.unnorm_key}' of {where} have {len(found.low_A)} numbers for '{part}', expected {dims}"
        )
    return found


class PromptTokenizer:
    """Prompts to ids, BOS first and `SPACE` last; each distinct sentence is tokenised once.

    :param source: contents of a `tokenizer.json`; "" spells prompts in Llama's byte tokens, for networks
        that were never trained.
    :param where: names the source in errors.
    :param template: of `template_of`.
    """

    def __init__(self, source: str, where: str = "tokenizer.json", template: str = OPENVLA) -> None:
        self._template = template
        self._tokenizer = _open(source, where) if source else None
        self.ids = lru_cache(maxsize=4096)(self._encode)
        """Token ids of the prompt for one instruction."""

    def batch(self, instructions: Sequence[str], pad: int) -> tuple[Tensor, Tensor]:
        """Ids int64 `[B, L]`, right padded with `pad`, and the bool mask of real ones."""
        rows = [self.ids(instruction) for instruction in instructions]
        return pad_ids(rows, max(len(row) for row in rows), pad)

    def _encode(self, instruction: str) -> tuple[int, ...]:
        if not instruction.strip():
            raise BadValue(f"the instruction {shown(instruction)} holds no word")
        prompt = openvla_prompt(instruction, self._template)
        if self._tokenizer is None:
            ids = [byte + _FIRST_BYTE for byte in prompt.encode("utf-8")]
        else:
            # transformers adds BOS whatever the post-processor of `tokenizer.json` is.
            ids = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        return (BOS, *ids) if ids[-1] == SPACE else (BOS, *ids, SPACE)


def _open(source: str, where: str) -> Tokenizer:
    tokenizer = parse_tokenizer(source, where)
    found = tokenizer.token_to_id(BOS_PIECE)
    if found != BOS:
        got = "no such piece" if found is None else f"id {found}"
        raise BadValue(
            f"'{where}' is not Llama's: '{BOS_PIECE}', with which prompts begin, must be id {BOS}, got {got}; "
            "take the tokenizer.json of the checkpoint or of its base"
        )
    return tokenizer
