"""pi0's and pi0.5's processor: observation -> network inputs, denoised actions -> environment actions, as in openpi."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vla_gym.errors import BadValue
from vla_policies.checkpoint_io.hub import call
from vla_policies.conventions import Conventions
from vla_policies.pi0.config import NetworkShape, Preprocessing
from vla_policies.processing.images import resize_bilinear
from vla_policies.processing.observations import channels_last, read_tokenizer
from vla_policies.types import PolicyInputs
from vla_policies.vlm_flow.config import WORDS
from vla_policies.vlm_flow.processor import Encode, FlowProcessor, TextTokenizer, words_encoder

BOS = 2
NEWLINE = 108
"""PaliGemma's token for "\n"."""
STATE_BINS = 256
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_REPO = "google/paligemma-3b-pt-224"


class Pi0Processor(FlowProcessor):
    """Preprocessing and postprocessing of one checkpoint.

    :param folder: where the checkpoint was read; None for fresh weights.
    """

    preprocessing: Preprocessing

    def __init__(
        self, conventions: Conventions, preprocessing: Preprocessing, shape: NetworkShape, folder: Path | None
    ) -> None:
        words = preprocessing.tokenizer == WORDS
        encode = words_encoder(NEWLINE + 1, shape.vocab_size) if words else paligemma_encoder(folder)
        # The newline after pi0's text is a token of its own.
        end = (NEWLINE,) if preprocessing.prompt_state == "none" else ()
        tokenizer = TextTokenizer(lambda text: (BOS, *encode(text), *end), preprocessing.max_tokens)
        super().__init__(conventions, preprocessing, shape, tokenizer)
        if not 0 <= preprocessing.delta_dims <= min(conventions.state_dim, conventions.action_dim):
            raise BadValue(
                f"delta_dims must be at most the state's and the action's dims ({conventions.state_dim} and "
                f"{conventions.action_dim}) and not below 0, got {preprocessing.delta_dims}"
            )

    def pixels(self, image: Tensor, key: str) -> Tensor:
        image_BHWC = channels_last(image, key)
        if self.preprocessing.resize == "pil":
            image_BHWC = resize_pil(image_BHWC, self.shape.image_size)
        pixels_BCHW = image_BHWC.permute(0, 3, 1, 2).float() / 255.0 * 2.0 - 1.0
        return resize_with_pad(pixels_BCHW, self.shape.image_size)

    def texts(self, instructions: Sequence[str], state_BS: Tensor) -> Sequence[str]:
        style = self.preprocessing.prompt_state
        if style == "none":
            return [pi0_text(instruction) for instruction in instructions]
        states = (self.padded(state_BS) if style == "padded" else state_BS).numpy().astype(np.float64)
        return [pi05_text(instruction, state_S) for instruction, state_S in zip(instructions, states, strict=True)]

    def to_env(self, x_BHD: Tensor, inputs: PolicyInputs) -> Tensor:
        action_BKA = self._add_state(self.to_robot(x_BHD)[:, : self.conventions.chunk], inputs, 1.0)
        if self.preprocessing.binarize_gripper:
            opens_BK1 = action_BKA[..., -1:] > 0.5
            action_BKA = torch.cat([action_BKA[..., :-1], 2.0 * opens_BK1 - 1.0], dim=-1)
        return action_BKA.clamp(-1.0, 1.0)

    def from_env(self, action_BKA: Tensor, inputs: PolicyInputs) -> Tensor:
        if self.preprocessing.binarize_gripper:
            action_BKA = torch.cat([action_BKA[..., :-1], (action_BKA[..., -1:] + 1.0) / 2.0], dim=-1)
        return super().from_env(self._add_state(action_BKA, inputs, -1.0), inputs)

    def _add_state(self, action_BKA: Tensor, inputs: PolicyInputs, sign: float) -> Tensor:
        dims = self.preprocessing.delta_dims
        if not dims:
            return action_BKA
        assert inputs.state_BS is not None
        state_BS = self.preprocessing.unnormalise(inputs.state_BS[:, : self.conventions.state_dim], "state")
        moved = action_BKA[..., :dims] + sign * state_BS[:, None, :dims]
        return torch.cat([moved, action_BKA[..., dims:]], dim=-1)


def pi0_text(instruction: str) -> str:
    """pi0's text of an instruction, without the newline, which is a token of its own."""
    return instruction.strip().replace("_", " ").replace("\n", " ")


def pi05_text(instruction: str, state_S: np.ndarray) -> str:
    """pi0.5's text of an instruction and the normalised state in 256 bins over [-1, 1]."""
    bins = " ".join(map(str, state_bins(state_S).tolist()))
    return f"Task: {pi0_text(instruction)}, State: {bins};\nAction: "


def state_bins(state: np.ndarray) -> np.ndarray:
    """Numbers to the index of their bin, 0 .. 255 in [-1, 1]; -1 below."""
    return np.digitize(state, np.linspace(-1.0, 1.0, STATE_BINS + 1)[:-1]) - 1


def paligemma_encoder(folder: Path | None) -> Encode:
    """PaliGemma's tokenizer from the folder's `tokenizer.json`, or from the Hub where the folder has none."""
    path = folder / TOKENIZER_FILE if folder is not None else None
    if path is None or not path.is_file():
        from huggingface_hub import hf_hub_download

        lacking = f"checkpoint folder '{folder}' has no {TOKENIZER_FILE} (put one there), and " if folder else ""
        what_failed = f"{lacking}PaliGemma's could not be fetched from {TOKENIZER_REPO}"
        path = Path(call(lambda: hf_hub_download(TOKENIZER_REPO, TOKENIZER_FILE), what_failed))
    tokenizer = read_tokenizer(path)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def resize_with_pad(image_BCHW: Tensor, size: int) -> Tensor:
    """Bilinear, aspect kept, black around it: floats in [-1, 1], `[B, C, size, size]`.

    As in openpi's `resize_with_pad_torch`: no antialiasing, the odd pixel of the padding at the bottom or right.
    """
    height, width = image_BCHW.shape[2:]
    if (height, width) == (size, size):
        return image_BCHW
    new_height, new_width, padding = _fit(height, width, size)
    resized = functional.interpolate(image_BCHW, (new_height, new_width), mode="bilinear", align_corners=False)
    return functional.pad(resized.clamp(-1.0, 1.0), padding, value=-1.0)


def resize_pil(image_BHWC: Tensor, size: int) -> Tensor:
    """PIL's bilinear (antialiased), aspect kept, black around it: uint8 `[B, size, size, 3]`, as openpi's clients."""
    height, width = image_BHWC.shape[1:3]
    if (height, width) == (size, size):
        return image_BHWC
    new_height, new_width, padding = _fit(height, width, size)
    return functional.pad(resize_bilinear(image_BHWC, new_height, new_width), (0, 0, *padding))


def _fit(height: int, width: int, size: int) -> tuple[int, int, tuple[int, int, int, int]]:
    """The largest size with that aspect that fits, and the padding (left, right, top, bottom) around it."""
    ratio = max(height / size, width / size)
    new_height, new_width = int(height / ratio), int(width / ratio)
    top, left = (size - new_height) // 2, (size - new_width) // 2
    return new_height, new_width, (left, size - new_width - left, top, size - new_height - top)
