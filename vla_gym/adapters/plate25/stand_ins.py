"""What is shown and touched where a published file is missing: boxes and generated pictures.

The arm has a file of its own, `stand_in_arm`.

A stand-in keeps the numbers that are known without the file (box, density, joints, masses), so every environment runs
on a bare machine and its episodes are laid out as published. Success rates on stand-ins compare with nothing else.
"""

from __future__ import annotations

import colorsys

import numpy as np

PHOTO_SIZE = (480, 640)
"""Rows and columns of the published photos and textures."""
TABLE_TOP = 0.869532
"""Height at which the published code puts plates that already lie (RLinf `_generate_init_pose`), metres."""
TABLE_HALF = (0.5, 0.5, 0.025)
"""Half sides of the box that stands in for the table mesh, metres."""


def colour(index: int) -> tuple[float, float, float, float]:
    """A colour for thing `index`: hues a golden angle apart, so that neighbours differ."""
    red, green, blue = colorsys.hsv_to_rgb(index * 0.618034 % 1.0, 0.65, 0.85)
    return red, green, blue, 1.0


def photo(index: int) -> np.ndarray:
    """A table top of wooden boards in the hue of table `index`, uint8 `[480, 640, 3]`."""
    height, width = PHOTO_SIZE
    rng = np.random.default_rng([7, index])
    boards = np.repeat(rng.uniform(0.75, 1.0, 8), width // 8)
    grain = np.cumsum(rng.normal(0.0, 0.01, (height, width)), axis=0)
    shade = np.clip(boards[None, :] + 0.3 * (grain - grain.mean(axis=0)), 0.3, 1.0)
    base = np.array(colorsys.hsv_to_rgb(index * 0.618034 % 1.0, 0.35, 0.8))
    return (255.0 * shade[..., None] * base).astype(np.uint8)


def texture(index: int) -> np.ndarray:
    """A pattern of crossing waves for texture `index`, uint8 `[480, 640, 3]`."""
    height, width = PHOTO_SIZE
    rng = np.random.default_rng([11, index])
    y, x = np.mgrid[0:height, 0:width] / height
    channels = []
    for _ in range(3):
        waves = [np.sin(2 * np.pi * (a * x + b * y + c)) for a, b, c in rng.uniform(-9.0, 9.0, (3, 3))]
        channels.append(np.sum(waves, axis=0))
    pattern = np.stack(channels, axis=-1)
    return (255.0 * (pattern - pattern.min()) / (pattern.max() - pattern.min())).astype(np.uint8)
