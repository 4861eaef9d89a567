"""The suite's "green screen": photos behind robot and objects, textures over them. Pure NumPy.

Letters: H, W picture. A pixel is *foreground* when it shows the robot, an object or a plate.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from PIL import Image

from vla_gym.adapters.plate25 import stand_ins
from vla_gym.adapters.plate25.assets import Assets
from vla_gym.adapters.plate25.catalogue import TABLES
from vla_gym.adapters.plate25.runs import Blend

FRAME = (480, 640)
"""Rows and columns of the published camera."""
WHOLE_ENLARGED = 2
"""A texture laid over the whole frame is stretched to this many times its sides; a window of it is shown."""


def photo(assets: Assets, table: int, frame: tuple[int, int]) -> np.ndarray:
    """Return the background of table `table`, uint8 `[*frame, 3]`, read-only; kept per process."""
    return _photo(assets.picture("imgs", TABLES[table].image), table, frame)


def texture(assets: Assets, index: int) -> np.ndarray:
    """Return texture `index` in its own size, uint8 `[h, w, 3]`, read-only; kept per process."""
    return _texture(assets.picture("textures", TABLES[index].texture), index)


@functools.lru_cache(maxsize=32)
def _photo(file: Path | None, table: int, frame: tuple[int, int]) -> np.ndarray:
    picture = stand_ins.photo(table) if file is None else _read(file)
    if picture.shape[:2] == frame:
        return _sealed(picture)
    if frame[0] < picture.shape[0]:
        return _sealed(shrink(picture, frame))
    return _sealed(np.rint(bilinear(picture, *frame)).astype(np.uint8))


@functools.lru_cache(maxsize=8)
def _texture(file: Path | None, index: int) -> np.ndarray:
    return _sealed(stand_ins.texture(index) if file is None else _read(file))


def shrink(picture: np.ndarray, frame: tuple[int, int]) -> np.ndarray:
    """Resize uint8 `[h, w, 3]` to `[*frame, 3]` as published processors do: bicubic, smoothed, aspect not kept."""
    height, width = frame
    return np.array(Image.fromarray(picture).resize((width, height), Image.Resampling.BICUBIC))


def inner_frame(size: int) -> tuple[int, int]:
    """Return rows and columns of the whole view in a square of `size`, its aspect kept."""
    return int(FRAME[0] / (FRAME[1] / size)), size


def letterbox(picture: np.ndarray, size: int) -> np.ndarray:
    """Resize uint8 `[h, w, 3]` to `[size, size, 3]` as openpi does: bilinear, smoothed, black above and below."""
    height, width = inner_frame(size)
    if picture.shape[:2] != (height, width):
        picture = np.array(Image.fromarray(picture).resize((width, height), Image.Resampling.BILINEAR))
    top = (size - height) // 2
    return np.pad(picture, ((top, size - height - top), (0, 0), (0, 0)))


def _read(file: Path) -> np.ndarray:
    """Colours of a picture file; its transparency is ignored, as upstream ignores it."""
    with Image.open(file) as picture:
        return np.array(picture.convert("RGB"))


def _sealed(picture: np.ndarray) -> np.ndarray:
    picture.flags.writeable = False
    return picture


def green_screen(
    rgb_HW3: np.ndarray,
    foreground_HW: np.ndarray,
    photo_HW3: np.ndarray,
    *,
    blend: Blend = "none",
    texture: np.ndarray | None = None,
    alpha: float = 0.0,
) -> np.ndarray:
    """Return a policy's picture, uint8 `[H, W, 3]`, fresh.

    Args:
        rgb_HW3: drawn scene, uint8.
        foreground_HW: bool; these pixels stay as drawn.
        photo_HW3: uint8, takes the place of all others.
        blend: "texture" mixes a texture into the foreground, "whole" into every pixel.
        texture: uint8, any size; needed unless `blend` is "none".
        alpha: share of the texture, 0 .. 1.
    """
    if rgb_HW3.shape != photo_HW3.shape or rgb_HW3.shape[:2] != foreground_HW.shape:
        raise ValueError(f"sizes differ: {rgb_HW3.shape}, {foreground_HW.shape}, {photo_HW3.shape}")
    out_HW3 = np.where(foreground_HW[..., None], rgb_HW3, photo_HW3)
    if blend == "none" or alpha == 0.0 or not foreground_HW.any():
        return out_HW3
    if texture is None:
        raise ValueError("blending needs a texture")
    top, bottom, left, right = box_of(foreground_HW)
    if blend == "texture":
        inside = (slice(top, bottom + 1), slice(left, right + 1))
        stretched = bilinear(texture, bottom + 1 - top, right + 1 - left)
        mixed = mix(out_HW3[inside], stretched, alpha)
        out_HW3[inside] = np.where(foreground_HW[inside][..., None], mixed, out_HW3[inside])
        return out_HW3
    height, width = foreground_HW.shape
    row = min(max((top + bottom) // 2, 1), height - 1)
    column = min(max((left + right) // 2, 1), width - 1)
    window = (slice(row, row + height), slice(column, column + width))
    return mix(out_HW3, bilinear(texture, WHOLE_ENLARGED * height, WHOLE_ENLARGED * width, window), alpha)


def box_of(mask_HW: np.ndarray) -> tuple[int, int, int, int]:
    """Return first and last row, first and last column of a mask that is not empty."""
    rows, columns = np.flatnonzero(mask_HW.any(axis=1)), np.flatnonzero(mask_HW.any(axis=0))
    return int(rows[0]), int(rows[-1]), int(columns[0]), int(columns[-1])


def mix(below: np.ndarray, above: np.ndarray, alpha: float) -> np.ndarray:
    """Mix `alpha` of `above` over `below`, fractions cut off as upstream does, uint8."""
    share = np.float32(alpha)
    mixed = above.astype(np.float32) * share + below.astype(np.float32) * (np.float32(1.0) - share)
    return np.clip(mixed, 0.0, 255.0).astype(np.uint8)


def bilinear(
    picture: np.ndarray, height: int, width: int, window: tuple[slice, slice] = (slice(None), slice(None))
) -> np.ndarray:
    """Stretch uint8 `[h, w, 3]` to float32 `[height, width, 3]`, of which `window` is computed.

    Half-pixel centres, no smoothing, as `cv2.resize` and `torch.nn.functional.interpolate(align_corners=False)`.
    """
    low_y, high_y, part_y = (taps[window[0]] for taps in _taps(picture.shape[0], height))
    low_x, high_x, part_x = (taps[window[1]] for taps in _taps(picture.shape[1], width))
    y, x = part_y[:, None, None], part_x[None, :, None]
    wide = picture[:, low_x].astype(np.float32) * (1 - x) + picture[:, high_x].astype(np.float32) * x
    return wide[low_y] * (1 - y) + wide[high_y] * y


def _taps(old: int, new: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    place = np.clip((np.arange(new, dtype=np.float32) + 0.5) * np.float32(old / new) - 0.5, 0.0, old - 1)
    low = place.astype(np.int64)
    return low, np.minimum(low + 1, old - 1), (place - low).astype(np.float32)
