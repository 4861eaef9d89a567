"""Observation -> network inputs, denoised actions -> environment actions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vla_gym.errors import BadValue
from vla_policies.conventions import Conventions
from vla_policies.pi0.config import NetworkShape, Preprocessing
from vla_policies.pi0.prompt import PromptTokenizer, pi0_text, pi05_text
from vla_policies.processing.images import channels_last, resize_bilinear
from vla_policies.processing.observations import decode_instructions
from vla_policies.processing.statistics import Statistics, check_dims, normalise, unnormalise
from vla_policies.transfer import upload
from vla_policies.types import PolicyInputs


class Pi0Processor:
    """Preprocessing and postprocessing of one checkpoint.

    Cameras that the conventions do not name have no tokens, which equals the masked tokens of the originals.
    """

    def __init__(
        self,
        conventions: Conventions,
        preprocessing: Preprocessing,
        shape: NetworkShape,
        tokenizer: PromptTokenizer,
    ) -> None:
        self.conventions = conventions
        self.preprocessing = preprocessing
        self.state_width = shape.state_width
        self.image_size = shape.vision.image_size
        self.tokenizer = tokenizer
        self._check_statistics()

    def prepare(self, obs: Mapping[str, Tensor]) -> PolicyInputs:
        """Tensors of B observations to inputs; the state is normalised and padded, `[B, state_width]`."""
        pixels = [self._pixels(obs[key], key) for key in self.conventions.cameras]
        device = pixels[0].device
        state_BS = self._state(obs, len(pixels[0]))
        text_BL, mask_BL = self._text(decode_instructions(obs["instruction"]), state_BS)
        return PolicyInputs(
            pixels_BMCHW=torch.stack(pixels, dim=1),
            text_BL=upload(text_BL, device),
            text_mask_BL=mask_BL,
            state_BS=upload(functional.pad(state_BS, (0, self.state_width - state_BS.shape[1])), device),
        )

    def to_env(self, x_BHD: Tensor, inputs: PolicyInputs) -> Tensor:
        """Denoised chunks to environment actions, float32 `[B, K, A]`, cut to [-1, 1]."""
        action_BKA = x_BHD[:, : self.conventions.chunk, : self.conventions.action_dim]
        action_BKA = self._unnormalise(action_BKA, self.preprocessing.action)
        action_BKA = self._add_state(action_BKA, inputs, 1.0)
        if self.preprocessing.binarize_gripper:
            opens_BK1 = action_BKA[..., -1:] > 0.5
            action_BKA = torch.cat([action_BKA[..., :-1], 2.0 * opens_BK1 - 1.0], dim=-1)
        return action_BKA.clamp(-1.0, 1.0)

    def from_env(self, action_BKA: Tensor, inputs: PolicyInputs) -> Tensor:
        """Environment actions to the network's units, `[B, K, A]`: inverse of `to_env`."""
        if self.preprocessing.binarize_gripper:
            action_BKA = torch.cat([action_BKA[..., :-1], (action_BKA[..., -1:] + 1.0) / 2.0], dim=-1)
        return self._normalise(self._add_state(action_BKA, inputs, -1.0), self.preprocessing.action)

    def _add_state(self, action_BKA: Tensor, inputs: PolicyInputs, sign: float) -> Tensor:
        """Actions with `sign` times the state added to their `delta_dims`."""
        dims = self.preprocessing.delta_dims
        if not dims:
            return action_BKA
        assert inputs.state_BS is not None
        state_BS = self._unnormalise(inputs.state_BS[:, : self.conventions.state_dim], self.preprocessing.state)
        moved = action_BKA[..., :dims] + sign * state_BS[:, None, :dims]
        return torch.cat([moved, action_BKA[..., dims:]], dim=-1)

    def _pixels(self, image: Tensor, key: str) -> Tensor:
        """Uint8 images to float32 `[B, 3, size, size]` in [-1, 1]."""
        image_BHWC = channels_last(image, key)
        if self.preprocessing.resize == "pil":
            image_BHWC = resize_pil(image_BHWC, self.image_size)
        pixels_BCHW = image_BHWC.permute(0, 3, 1, 2).float() / 255.0 * 2.0 - 1.0
        return resize_with_pad(pixels_BCHW, self.image_size)

    def _state(self, obs: Mapping[str, Tensor], num: int) -> Tensor:
        """Normalised, on the CPU."""
        if not self.conventions.state_dim:
            return torch.zeros(num, 0)
        return self._normalise(obs["state"].cpu().float(), self.preprocessing.state)

    def _text(self, instructions: list[str], state_BS: Tensor) -> tuple[Tensor, Tensor]:
        style = self.preprocessing.prompt_state
        if style == "none":
            return self.tokenizer.batch([pi0_text(instruction) for instruction in instructions], newline=True)
        if style == "padded":
            state_BS = functional.pad(state_BS, (0, self.state_width - state_BS.shape[1]))
        states = state_BS.numpy().astype(np.float64)
        texts = [pi05_text(instruction, state_S) for instruction, state_S in zip(instructions, states, strict=True)]
        return self.tokenizer.batch(texts, newline=False)

    # Statistics ---------------------------------------------------------------------------------------

    def _normalise(self, x: Tensor, statistics: Statistics | None) -> Tensor:
        preprocessing = self.preprocessing
        return normalise(x, statistics, preprocessing.normalization, preprocessing.epsilon)

    def _unnormalise(self, x: Tensor, statistics: Statistics | None) -> Tensor:
        preprocessing = self.preprocessing
        epsilon = preprocessing.epsilon if preprocessing.epsilon_back else 0.0
        return unnormalise(x, statistics, preprocessing.normalization, epsilon)

    def _check_statistics(self) -> None:
        for part, needed in (("state", self.conventions.state_dim), ("action", self.conventions.action_dim)):
            check_dims(getattr(self.preprocessing, part), self.preprocessing.normalization, needed, part)
        if self.conventions.state_dim > self.state_width:
            raise BadValue(f"the network reads {self.state_width} numbers of state, got {self.conventions.state_dim}")
        if not 0 <= self.preprocessing.delta_dims <= min(self.conventions.state_dim, self.conventions.action_dim):
            raise BadValue(
                f"delta_dims must be at most the state's and the action's dims ({self.conventions.state_dim} and "
                f"{self.conventions.action_dim}) and not below 0, got {self.preprocessing.delta_dims}"
            )


def resize_with_pad(image_BCHW: Tensor, size: int) -> Tensor:
    """Bilinear, aspect kept, black around it: uint8, or floats in [-1, 1]; `[B, C, size, size]`.

    As in openpi's `resize_with_pad_torch`: no antialiasing, the odd pixel of the padding at the bottom or right.
    """
    height, width = image_BCHW.shape[2:]
    if (height, width) == (size, size):
        return image_BCHW
    new_height, new_width, (left, right, top, bottom) = _fit(height, width, size)
    resized = functional.interpolate(image_BCHW, (new_height, new_width), mode="bilinear", align_corners=False)
    if image_BCHW.dtype != torch.uint8:
        resized = resized.clamp(-1.0, 1.0)
    black = 0 if image_BCHW.dtype == torch.uint8 else -1.0
    return functional.pad(resized, (left, right, top, bottom), value=black)


def resize_pil(image_BHWC: Tensor, size: int) -> Tensor:
    """PIL's bilinear (antialiased), aspect kept, black around it: uint8 `[B, size, size, 3]`, as openpi's clients."""
    height, width = image_BHWC.shape[1:3]
    if (height, width) == (size, size):
        return image_BHWC
    new_height, new_width, (left, right, top, bottom) = _fit(height, width, size)
    return functional.pad(resize_bilinear(image_BHWC, new_height, new_width), (0, 0, left, right, top, bottom))


def _fit(height: int, width: int, size: int) -> tuple[int, int, tuple[int, int, int, int]]:
    """The largest size with that aspect that fits, and the padding (left, right, top, bottom) around it."""
    ratio = max(height / size, width / size)
    new_height, new_width = int(height / ratio), int(width / ratio)
    top, left = (size - new_height) // 2, (size - new_width) // 2
    return new_height, new_width, (left, size - new_width - left, top, size - new_height - top)
