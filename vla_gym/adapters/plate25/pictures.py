"""The tables' photos and textures, as arrays of the size they are needed in; kept per process."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from PIL import Image

from vla_gym.adapters.plate25 import stand_ins
from vla_gym.adapters.plate25.assets import Assets
from vla_gym.adapters.plate25.catalogue import TABLES
from vla_gym.adapters.plate25.overlay import bilinear


def photo(assets: Assets, table: int, frame: tuple[int, int]) -> np.ndarray:
    """What lies behind robot and objects on table `table`, uint8 `[*frame, 3]`; not to be written to."""
    return _photo(assets.picture("imgs", TABLES[table].image), table, frame)


def texture(assets: Assets, index: int) -> np.ndarray:
    """Texture `index` in its own size, uint8 `[h, w, 3]`; not to be written to."""
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


def _read(file: Path) -> np.ndarray:
    """Colours of a picture file; its transparency is ignored, as upstream ignores it."""
    with Image.open(file) as picture:
        return np.array(picture.convert("RGB"))


def _sealed(picture: np.ndarray) -> np.ndarray:
    picture.flags.writeable = False
    return picture
