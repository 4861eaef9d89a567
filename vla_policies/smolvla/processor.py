"""Observation -> network inputs, denoised actions -> environment actions, as lerobot's SmolVLA."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from vla_gym.errors import BadValue
from vla_policies.conventions import Conventions
from vla_policies.processing.images import channels_last
from vla_policies.processing.lerobot_files import EPSILON
from vla_policies.processing.observations import decode_instructions
from vla_policies.processing.statistics import Statistics, check_dims, normalise, unnormalise
from vla_policies.smolvla.config import NetworkShape, Preprocessing
from vla_policies.smolvla.tokenizer import TextTokenizer
from vla_policies.transfer import upload
from vla_policies.types import PolicyInputs


class SmolVLAProcessor:
    """Preprocessing and postprocessing of one checkpoint.

    Cameras that the conventions do not name have no tokens, which equals the masked tokens of the original.
    """

    def __init__(
        self,
        conventions: Conventions,
        preprocessing: Preprocessing,
        shape: NetworkShape,
        tokenizer: TextTokenizer,
    ) -> None:
        self.conventions = conventions
        self.normalization = preprocessing.normalization
        used = preprocessing.use_statistics
        self.state_statistics = preprocessing.state if used else None
        self.action_statistics = preprocessing.action if used else None
        self.state_width = shape.state_width
        self.picture_size = shape.picture_size
        self.tokenizer = tokenizer
        self._check()

    def prepare(self, obs: Mapping[str, Tensor]) -> PolicyInputs:
        """Tensors of B observations to inputs; the state is normalised and padded, `[B, state_width]`."""
        pixels = [self.pixels(obs[key], key) for key in self.conventions.cameras]
        device = pixels[0].device
        state_BS = torch.zeros(len(pixels[0]), 0)
        if self.conventions.state_dim:
            state_BS = self._normalise(obs["state"].cpu().float(), self.state_statistics)
        text_BL, mask_BL = self.tokenizer.batch(decode_instructions(obs["instruction"]))
        return PolicyInputs(
            pixels_BMCHW=torch.stack(pixels, dim=1),
            text_BL=upload(text_BL, device),
            text_mask_BL=mask_BL,
            state_BS=upload(functional.pad(state_BS, (0, self.state_width - state_BS.shape[1])), device),
        )

    def pixels(self, image: Tensor, key: str) -> Tensor:
        """Uint8 images to float32 `[B, 3, size, size]` in [-1, 1]."""
        image_BCHW = channels_last(image, key).permute(0, 3, 1, 2).float() / 255.0
        if self.picture_size is not None:
            image_BCHW = resize_to_corner(image_BCHW, self.picture_size)
        return image_BCHW * 2.0 - 1.0

    def to_env(self, x_BHD: Tensor, inputs: PolicyInputs) -> Tensor:
        """Denoised chunks to environment actions, float32 `[B, K, A]`, cut to [-1, 1]."""
        return self.to_robot(x_BHD)[:, : self.conventions.chunk].clamp(-1.0, 1.0)

    def to_robot(self, x_BHD: Tensor) -> Tensor:
        """Denoised actions in the units of the data, `[B, H, A]`."""
        action_BHA = x_BHD[..., : self.conventions.action_dim]
        return unnormalise(action_BHA, self.action_statistics, self.normalization, 0.0)

    def from_env(self, action_BKA: Tensor, inputs: PolicyInputs) -> Tensor:
        """Environment actions to the network's units, `[B, K, A]`: inverse of `to_env`."""
        return self._normalise(action_BKA, self.action_statistics)

    def _normalise(self, x: Tensor, statistics: Statistics | None) -> Tensor:
        return normalise(x, statistics, self.normalization, EPSILON if self.normalization == "mean_std" else 0.0)

    def _check(self) -> None:
        for part, statistics, needed in (
            ("state", self.state_statistics, self.conventions.state_dim),
            ("action", self.action_statistics, self.conventions.action_dim),
        ):
            try:
                check_dims(statistics, self.normalization, needed, part)
            except BadValue as error:
                raise BadValue(f"{error}; those of another robot are left out by use_statistics: false") from error
        if self.conventions.state_dim > self.state_width:
            raise BadValue(f"the network reads {self.state_width} numbers of state, got {self.conventions.state_dim}")


def resize_to_corner(image_BCHW: Tensor, size: int) -> Tensor:
    """Bilinear without antialiasing, aspect kept, zeros above and on the left: floats `[B, C, size, size]`."""
    height, width = image_BCHW.shape[2:]
    if (height, width) == (size, size):
        return image_BCHW
    ratio = max(height / size, width / size)
    fitted = (int(height / ratio), int(width / ratio))
    resized = functional.interpolate(image_BCHW, fitted, mode="bilinear", align_corners=False)
    return functional.pad(resized, (size - fitted[1], 0, size - fitted[0], 0))
