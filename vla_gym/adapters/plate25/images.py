"""The suite's "green screen": photos behind robot and objects, textures over them. Pure NumPy.

Letters: H, W image. A pixel is *foreground* when it shows the robot, an object or a plate.
"""

from __future__ import annotations

import colorsys
import functools
from pathlib import Path

import numpy as np
from PIL import Image

from vla_gym.adapters.plate25.assets import Assets
from vla_gym.adapters.plate25.catalogue import TABLES
from vla_gym.adapters.plate25.runs import Blend

FRAME = (480, 640)
"""Rows and columns of the published camera, photos and textures."""
WHOLE_ENLARGED = 2
"""A texture laid over the whole frame is stretched to this many times its sides; a window of it is shown."""


@functools.lru_cache(maxsize=32)
def photo(assets: Assets, table: int, frame: tuple[int, int]) -> np.ndarray:
    """Return the background of table `table`, uint8 `[*frame, 3]`, read-only; kept per process."""
    file = assets.image("imgs", TABLES[table].image)
    image = stand_in_photo(table) if file is None else _read(file)
    if frame[0] < image.shape[0]:
        image = shrink(image, frame)
    elif frame != image.shape[:2]:
        image = np.rint(bilinear(image, *frame)).astype(np.uint8)
    return _read_only(image)


@functools.lru_cache(maxsize=8)
def texture(assets: Assets, index: int) -> np.ndarray:
    """Return texture `index` in its own size, uint8 `[h, w, 3]`, read-only; kept per process."""
    file = assets.image("textures", TABLES[index].texture)
    return _read_only(stand_in_texture(index) if file is None else _read(file))


def shrink(image: np.ndarray, frame: tuple[int, int]) -> np.ndarray:
    """Resize uint8 `[h, w, 3]` to `[*frame, 3]` as published processors do: bicubic, smoothed, aspect not kept."""
    height, width = frame
    return np.array(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))


def inner_frame(size: int) -> tuple[int, int]:
    """Return rows and columns of the whole view in a square of `size`, its aspect kept."""
    return int(FRAME[0] / (FRAME[1] / size)), size


def letterbox(image: np.ndarray, size: int) -> np.ndarray:
    """Resize uint8 `[h, w, 3]` to `[size, size, 3]` as openpi does: bilinear, smoothed, black above and below."""
    height, width = inner_frame(size)
    if image.shape[:2] != (height, width):
        image = np.array(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
    top = (size - height) // 2
    return np.pad(image, ((top, size - height - top), (0, 0), (0, 0)))


def _read(file: Path) -> np.ndarray:
    with Image.open(file) as image:
        return np.array(image.convert("RGB"))  # transparency is ignored, as upstream ignores it


def _read_only(image: np.ndarray) -> np.ndarray:
    image.flags.writeable = False
    return image


def green_screen(
    rgb_HW3: np.ndarray,
    foreground_HW: np.ndarray,
    photo_HW3: np.ndarray,
    *,
    blend: Blend = "none",
    texture: np.ndarray | None = None,
    alpha: float = 0.0,
) -> np.ndarray:
    """Return a policy's image, uint8 `[H, W, 3]`, fresh.

    Args:
        rgb_HW3: drawn scene, uint8.
        foreground_HW: bool; these pixels stay as drawn.
        photo_HW3: uint8, takes the place of all others.
        blend: "texture" mixes a texture into the foreground, "whole" into every pixel.
        texture: uint8, any size; needed unless `blend` is "none".
        alpha: share of the texture, 0 .. 1.
    """
    out_HW3 = np.where(foreground_HW[..., None], rgb_HW3, photo_HW3)
    if texture is None or blend == "none" or alpha == 0.0 or not foreground_HW.any():
        return out_HW3
    rows, columns = np.flatnonzero(foreground_HW.any(axis=1)), np.flatnonzero(foreground_HW.any(axis=0))
    (top, bottom), (left, right) = rows[[0, -1]].tolist(), columns[[0, -1]].tolist()
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


def mix(below: np.ndarray, above: np.ndarray, alpha: float) -> np.ndarray:
    """Mix `alpha` of `above` over `below`, fractions cut off as upstream does, uint8."""
    share = np.float32(alpha)
    mixed = above.astype(np.float32) * share + below.astype(np.float32) * (np.float32(1.0) - share)
    return np.clip(mixed, 0.0, 255.0).astype(np.uint8)


def bilinear(
    image: np.ndarray, height: int, width: int, window: tuple[slice, slice] = (slice(None), slice(None))
) -> np.ndarray:
    """Stretch uint8 `[h, w, 3]` to float32 `[height, width, 3]`, of which `window` is computed.

    Half-pixel centres, no smoothing, as `cv2.resize` and `torch.nn.functional.interpolate(align_corners=False)`.
    """
    low_y, high_y, part_y = (taps[window[0]] for taps in _taps(image.shape[0], height))
    low_x, high_x, part_x = (taps[window[1]] for taps in _taps(image.shape[1], width))
    y, x = part_y[:, None, None], part_x[None, :, None]
    wide = image[:, low_x].astype(np.float32) * (1 - x) + image[:, high_x].astype(np.float32) * x
    return wide[low_y] * (1 - y) + wide[high_y] * y


def _taps(old: int, new: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    place = np.clip((np.arange(new, dtype=np.float32) + 0.5) * np.float32(old / new) - 0.5, 0.0, old - 1)
    low = place.astype(np.int64)
    return low, np.minimum(low + 1, old - 1), (place - low).astype(np.float32)


def stand_in_photo(index: int) -> np.ndarray:
    """Return a table top of wooden boards in the hue of table `index`, uint8 `[480, 640, 3]`."""
    height, width = FRAME
    rng = np.random.default_rng([7, index])
    boards = np.repeat(rng.uniform(0.75, 1.0, 8), width // 8)
    grain = np.cumsum(rng.normal(0.0, 0.01, (height, width)), axis=0)
    shade = np.clip(boards[None, :] + 0.3 * (grain - grain.mean(axis=0)), 0.3, 1.0)
    base = np.array(colorsys.hsv_to_rgb(index * 0.618034 % 1.0, 0.35, 0.8))
    return (255.0 * shade[..., None] * base).astype(np.uint8)


def stand_in_texture(index: int) -> np.ndarray:
    """Return a pattern of crossing waves for texture `index`, uint8 `[480, 640, 3]`."""
    height, width = FRAME
    rng = np.random.default_rng([11, index])
    y, x = np.mgrid[0:height, 0:width] / height
    channels = []
    for _ in range(3):
        waves = [np.sin(2 * np.pi * (a * x + b * y + c)) for a, b, c in rng.uniform(-9.0, 9.0, (3, 3))]
        channels.append(np.sum(waves, axis=0))
    pattern = np.stack(channels, axis=-1)
    return (255.0 * (pattern - pattern.min()) / (pattern.max() - pattern.min())).astype(np.uint8)
