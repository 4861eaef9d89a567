"""LIBERO-Plus's image noise: its env_wrapper.py (MIT) in NumPy and SciPy, for images of 256 pixels a side.

Motion blur is ImageMagick's `MagickMotionBlurImage`: samples along a line from the pixel, weighted by half a Gaussian.
`rng` is drawn from as upstream draws from NumPy's global generator.
"""

from __future__ import annotations

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter, zoom

SIZE = 256
"""Side of the images that the strengths below are meant for, pixels."""
SEVERITIES = 10
MOTION = ((5, 2), (8, 3), (10, 4), (12, 5), (15, 6), (18, 8), (20, 10), (25, 12), (30, 15), (35, 20))
"""Radius and standard deviation, pixels."""
ZOOM = ((11, 1), (16, 1), (21, 2), (26, 2), (31, 3), (36, 1), (41, 1), (46, 2), (51, 2), (56, 3))
"""End and step of the enlargements from 1, per cent above it."""
FOG = ((0.5, 3), (1, 2.8), (1.5, 2.5), (2, 2.2), (2.5, 2), (3, 1.8), (3.5, 1.6), (4, 1.5), (4.5, 1.4), (5, 1.3))
"""Thickness, and how fast detail fades."""
GLASS = (
    *((0.5, 1, 3), (0.7, 1, 3), (0.9, 2, 3), (1, 2, 2), (1.1, 3, 2)),
    *((1.3, 3, 2), (1.5, 4, 2), (1.8, 4, 2), (2.2, 5, 1), (2.5, 5, 1)),
)
"""Standard deviation, largest shift of a pixel, rounds of shifts."""
GLASS_SIDE = 224
"""Pixels are shifted up to here, in images of any size."""


def noisy(image_HWC: np.ndarray, noise: int, rng: np.random.RandomState) -> np.ndarray:
    """Return the image u8 `[H, H, 3]` as LIBERO-Plus's noise 1 .. 50 leaves it.

    1-10 is motion blur, 11-20 Gaussian blur, 21-30 zoom blur, 31-40 fog, 41-50 glass blur, weakest first. An image of
    another size is brought to `SIZE` and back.
    """
    size = len(image_HWC)
    kind, severity = divmod(noise - 1, SEVERITIES)
    nearest = Image.Resampling.NEAREST
    large = image_HWC if size == SIZE else np.asarray(Image.fromarray(image_HWC).resize((SIZE, SIZE), nearest))
    blurred: np.ndarray = KINDS[kind](large / 255.0, severity, rng)
    changed = (np.clip(blurred, 0.0, 1.0) * 255).astype(np.uint8)
    return changed if size == SIZE else np.asarray(Image.fromarray(changed).resize((size, size), Image.Resampling.BOX))


def motion_blur(image_HWC: np.ndarray, severity: int, rng: np.random.RandomState) -> np.ndarray:
    """Blur along a line at an angle within 45 degrees of horizontal; ImageMagick rounds to the nearest level."""
    radius, sigma = MOTION[severity]
    angle = np.radians(rng.uniform(-45, 45))
    along = np.arange(2 * radius + 1)
    weights = np.exp(-(along**2) / (2.0 * sigma**2))
    right, down = (np.ceil(along * part - 0.5).astype(int) for part in (np.cos(angle), np.sin(angle)))
    places = np.arange(len(image_HWC))
    out = np.zeros_like(image_HWC)
    for weight, dx, dy in zip(weights / weights.sum(), right, down, strict=True):
        rows, columns = (np.clip(places + shift, 0, places[-1]) for shift in (dy, dx))
        out += weight * image_HWC[rows[:, None], columns]
    return np.floor(out * 255 + 0.5) / 255 + 1e-9


def gaussian_blur(image_HWC: np.ndarray, severity: int, rng: np.random.RandomState) -> np.ndarray:
    """Blur with a standard deviation of 1 to 10 pixels."""
    return _smooth(image_HWC, severity + 1)


def zoom_blur(image_HWC: np.ndarray, severity: int, rng: np.random.RandomState) -> np.ndarray:
    """Mean of the image and enlargements of it."""
    end, step = ZOOM[severity]
    factors = np.arange(1, 1 + end / 100, step / 100)
    image_HWC = image_HWC.astype(np.float32)
    out = np.zeros_like(image_HWC)
    for factor in factors:
        out += _enlarged(image_HWC, factor)
    return (image_HWC + out) / (len(factors) + 1)


def fog(image_HWC: np.ndarray, severity: int, rng: np.random.RandomState) -> np.ndarray:
    """Lay a cloud over the image."""
    thickness, decay = FOG[severity]
    brightest = image_HWC.max()
    return (image_HWC + thickness * cloud(decay, rng)[..., None]) * brightest / (brightest + thickness)


def glass_blur(image_HWC: np.ndarray, severity: int, rng: np.random.RandomState) -> np.ndarray:
    """Smooth, take pixels from nearby, smooth. Upstream means to swap two pixels; its arrays being views, it copies."""
    sigma, far, rounds = GLASS[severity]
    smooth_HWC = np.uint8(_smooth(image_HWC, sigma) * 255)
    side = len(image_HWC)
    axis = np.arange(GLASS_SIDE - far, far, -1)
    places = (axis[:, None] * side + axis).ravel()
    source = list(range(side * side))
    for _ in range(rounds):
        shift_P2 = rng.randint(-far, far, size=(places.size, 2))
        nearby = places + shift_P2[:, 1] * side + shift_P2[:, 0]
        for place, other in zip(places.tolist(), nearby.tolist(), strict=True):
            source[place] = source[other]
    return _smooth(smooth_HWC.reshape(-1, 3)[source].reshape(image_HWC.shape) / 255.0, sigma)


def cloud(decay: float, rng: np.random.RandomState) -> np.ndarray:
    """Return a height map of the diamond-square algorithm, `[SIZE, SIZE]` in 0 .. 1."""
    heights = np.zeros((SIZE, SIZE))
    step, wild = SIZE, 100.0

    def rough(total: np.ndarray) -> np.ndarray:
        return total / 4 + wild * rng.uniform(-wild, wild, total.shape)

    while step >= 2:
        half = step // 2
        corners = heights[::step, ::step]
        beside = corners + np.roll(corners, -1, axis=0)
        heights[half::step, half::step] = rough(beside + np.roll(beside, -1, axis=1))
        middles = heights[half::step, half::step]
        heights[::step, half::step] = rough(
            middles + np.roll(middles, 1, axis=0) + (corners + np.roll(corners, -1, axis=1))
        )
        heights[half::step, ::step] = rough(
            middles + np.roll(middles, 1, axis=1) + (corners + np.roll(corners, -1, axis=0))
        )
        step, wild = half, wild / decay
    heights -= heights.min()
    return heights / heights.max()


def _smooth(image_HWC: np.ndarray, sigma: float) -> np.ndarray:
    return gaussian_filter(image_HWC, (sigma, sigma, 0), mode="nearest")


def _enlarged(image_HWC: np.ndarray, factor: float) -> np.ndarray:
    side = len(image_HWC)
    part = int(np.ceil(side / factor))
    first = (side - part) // 2
    inner = slice(first, first + part)
    large = zoom(image_HWC[inner, inner], (factor, factor, 1), order=1)
    first = (len(large) - side) // 2
    return large[first : first + side, first : first + side]


KINDS = (motion_blur, gaussian_blur, zoom_blur, fog, glass_blur)
"""Each takes an image `[SIZE, SIZE, 3]` in 0 .. 1, a severity from 0 and random numbers, and returns an image."""
