"""SmolVLA's processor: observation -> network inputs, denoised actions -> environment actions, as lerobot's."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from vla_gym.errors import BadValue
from vla_gym.reading import read_json_object
from vla_policies.processing.observations import channels_last, read_tokenizer
from vla_policies.smolvla.config import NetworkShape
from vla_policies.vlm_flow.processor import FlowProcessor, TextTokenizer

TOKENIZER_FILE, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TOKENIZER_FILES = (TOKENIZER_FILE, TOKENIZER_CONFIG, "special_tokens_map.json")
"""Files of a tokenizer."""
BRACKETS = ("<fake_token_around_image>", "<global-img>")
"""Names of the tokens of `NetworkShape.image_brackets`."""


class SmolVLAProcessor(FlowProcessor):
    """Preprocessing and postprocessing of one checkpoint."""

    shape: NetworkShape

    def pixels(self, image: Tensor, key: str) -> Tensor:
        image_BCHW = channels_last(image, key).permute(0, 3, 1, 2).float() / 255.0
        if self.shape.picture_size is not None:
            image_BCHW = resize_to_corner(image_BCHW, self.shape.picture_size)
        return image_BCHW * 2.0 - 1.0


def resize_to_corner(image_BCHW: Tensor, size: int) -> Tensor:
    """Bilinear without antialiasing, aspect kept, zeros above and on the left: floats `[B, C, size, size]`."""
    height, width = image_BCHW.shape[2:]
    if (height, width) == (size, size):
        return image_BCHW
    ratio = max(height / size, width / size)
    fitted = (int(height / ratio), int(width / ratio))
    resized = functional.interpolate(image_BCHW, fitted, mode="bilinear", align_corners=False)
    return functional.pad(resized, (size - fitted[1], 0, size - fitted[0], 0))


def folder_tokenizer(folder: Path, max_tokens: int) -> TextTokenizer:
    """The tokenizer of a vision-language model's folder; padding and side of truncation are its own."""
    tokenizer = _read(folder)
    settings = read_json_object(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).is_file() else {}
    pad = settings.get("pad_token")
    name = pad.get("content") if isinstance(pad, dict) else pad
    return TextTokenizer(
        lambda text: tokenizer.encode(text if text.endswith("\n") else text + "\n").ids,
        max_tokens,
        pad=(tokenizer.token_to_id(str(name)) if name is not None else None) or 0,
        keep_end=settings.get("truncation_side", "right") == "left",
    )


def bracket_ids(folder: Path) -> tuple[int, int]:
    """Ids of `BRACKETS`; raises `BadValue` where the tokenizer has them not."""
    tokenizer = _read(folder)
    begin, end = (tokenizer.token_to_id(name) for name in BRACKETS)
    if begin is None or end is None:
        raise BadValue(f"'{folder / TOKENIZER_FILE}' lacks the image tokens {', '.join(BRACKETS)}")
    return begin, end


def _read(folder: Path) -> Tokenizer:
    tokenizer = read_tokenizer(folder / TOKENIZER_FILE)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
