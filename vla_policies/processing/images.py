"""Uint8 image steps, bit for bit those that published checkpoints were trained with: batched, on device.

By hand because torch's resizes differ in the last bits, and TensorFlow is no dependency.
Every resize is separable and written as a few taps per output row: `out[i] = sum_t weight[i, t] in[index[i, t]]`.
Sources: Pillow `Resample.c` (bicubic, 22-bit fixed point), TensorFlow `scale_and_translate_op.cc` (Lanczos-3) and
`crop_and_resize_op.cc` (the centre crop), in the chain of openvla-oft 213c5ff8.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from vla_policies.devices import constant

CROP_AREA = 0.9
"""Part of the area that a centre crop keeps, as in the random-crop augmentation of LIBERO fine-tunes."""

_PILLOW_BITS = 22


@dataclass(frozen=True)
class Taps:
    """One axis of a separable resize."""

    index: Tensor
    """Input row of each tap, int64 `[out, T]`."""
    weight: Tensor
    """Weight of each tap, float64 `[out, T]`; 0 where a tap lies outside the image."""


def resize_bicubic(image_BHWC: Tensor, height: int, width: int) -> Tensor:
    """Pillow's antialiased bicubic resize, bit for bit, uint8 `[B, height, width, C]`."""
    image_BHWC = _pillow_pass(image_BHWC, width, 2, bicubic, 2.0)
    return _pillow_pass(image_BHWC, height, 1, bicubic, 2.0)


def resize_bilinear(image_BHWC: Tensor, height: int, width: int) -> Tensor:
    """Pillow's antialiased bilinear resize, bit for bit, uint8 `[B, height, width, C]`."""
    image_BHWC = _pillow_pass(image_BHWC, width, 2, triangle, 1.0)
    return _pillow_pass(image_BHWC, height, 1, triangle, 1.0)


def resize_lanczos3(image_BHWC: Tensor, height: int, width: int) -> Tensor:
    """TensorFlow's antialiased Lanczos-3 resize, rounded and clipped, uint8 `[B, height, width, C]`."""
    out = image_BHWC.float()
    for dim, size in ((1, height), (2, width)):
        out = _apply(out, _lanczos_taps(image_BHWC.shape[dim], size, out.device), dim)
    return out.round_().clamp_(0, 255).to(torch.uint8)


def crop_center(image_BHWC: Tensor, height: int, width: int) -> Tensor:
    """The central `CROP_AREA` of each image, bilinearly stretched to `[B, height, width, C]`, uint8.

    As `tf.image.crop_and_resize` on floats in [0, 1], then times 255.5 and truncated.
    """
    out = image_BHWC.float() / 255.0
    for dim, size in ((2, width), (1, height)):
        first, second, mix = crop_rows(image_BHWC.shape[dim], size, out.device)
        low, high = out.index_select(dim, first), out.index_select(dim, second)
        out = low + (high - low).mul_(mix.view([-1 if axis == dim else 1 for axis in range(4)]))
    return out.clamp_(0.0, 1.0).mul_(255.5).to(torch.uint8)


def pad_to_square(image_BHWC: Tensor, fill: tuple[int, int, int]) -> Tensor:
    """Equal borders of colour `fill` around the shorter side; the odd pixel goes right or below."""
    batch, height, width, _ = image_BHWC.shape
    side = max(height, width)
    colour = constant(fill, torch.uint8, image_BHWC.device)
    square = colour.expand(batch, side, side, 3).clone()
    top, left = (side - height) // 2, (side - width) // 2
    square[:, top : top + height, left : left + width] = image_BHWC
    return square


def triangle(x: float) -> float:
    """The bilinear kernel."""
    return max(0.0, 1.0 - abs(x))


def bicubic(x: float) -> float:
    """Keys' cubic kernel with a = -0.5."""
    x = abs(x)
    if x < 1.0:
        return (1.5 * x - 2.5) * x * x + 1.0
    return ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0 if x < 2.0 else 0.0


def lanczos3(x: float) -> float:
    """sinc(x) sinc(x / 3) on |x| < 3."""
    if abs(x) >= 3.0:
        return 0.0
    if abs(x) < 1e-6:
        return 1.0
    return 3.0 * math.sin(math.pi * x) * math.sin(math.pi * x / 3.0) / (math.pi * x) ** 2


@lru_cache(maxsize=64)
def antialiased_taps(size_in: int, size_out: int, kernel: Callable[[float], float], support: float) -> Taps:
    """Taps of a resize whose kernel is widened by the scale when shrinking; weights sum to 1."""
    scale = size_in / size_out
    widened = max(scale, 1.0)
    reach = support * widened
    rows = []
    for i in range(size_out):
        centre = (i + 0.5) * scale
        first = max(0, int(centre - reach + 0.5))
        last = min(size_in, int(centre + reach + 0.5))
        weights = [kernel((j + 0.5 - centre) / widened) for j in range(first, last)]
        total = sum(weights)
        rows.append((first, [weight / total for weight in weights]))
    count = max(len(weights) for _, weights in rows)
    weight = torch.tensor([weights + [0.0] * (count - len(weights)) for _, weights in rows], dtype=torch.float64)
    index = torch.tensor([first for first, _ in rows])[:, None] + torch.arange(count)
    return Taps(index.clamp(max=size_in - 1), weight)


@lru_cache(maxsize=64)
def crop_rows(size_in: int, size_out: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The rows on both sides of each output row of the central crop, and the share of the second.

    In float32 throughout, as in TensorFlow: a share that differs in its last bit moves a grey level.
    """
    side = torch.tensor(CROP_AREA, dtype=torch.float32).sqrt()
    begin = (1 - side) / 2
    step = (begin + side - begin) * (size_in - 1) / max(size_out - 1, 1)
    place = begin * (size_in - 1) + torch.arange(size_out, dtype=torch.float32) * step
    first = place.floor()
    rows = (first.long(), place.ceil().long().clamp(max=size_in - 1), place - first)
    return rows[0].to(device), rows[1].to(device), rows[2].to(device)


@lru_cache(maxsize=64)
def _lanczos_taps(size_in: int, size_out: int, device: torch.device) -> Taps:
    taps = antialiased_taps(size_in, size_out, lanczos3, 3.0)
    return Taps(taps.index.to(device), taps.weight.to(device, torch.float32))


@lru_cache(maxsize=64)
def _pillow_taps(
    size_in: int, size_out: int, kernel: Callable[[float], float], support: float, device: torch.device
) -> Taps:
    """Taps with Pillow's whole numbers as weights, int32, on `device`."""
    taps = antialiased_taps(size_in, size_out, kernel, support)
    scaled = taps.weight * (1 << _PILLOW_BITS)
    whole = (scaled + torch.where(scaled < 0, -0.5, 0.5)).trunc().to(torch.int32)
    return Taps(taps.index.to(device), whole.to(device))


def _pillow_pass(image_BHWC: Tensor, size: int, dim: int, kernel: Callable[[float], float], support: float) -> Tensor:
    """One pass of Pillow's 8-bit resampling: integer weights, rounded back to uint8."""
    if image_BHWC.shape[dim] == size:
        return image_BHWC
    taps = _pillow_taps(image_BHWC.shape[dim], size, kernel, support, image_BHWC.device)
    total = _apply(image_BHWC.to(torch.int32), taps, dim)
    rounded = (total + (1 << (_PILLOW_BITS - 1))) >> _PILLOW_BITS
    return rounded.clamp_(0, 255).to(torch.uint8)


def _apply(x: Tensor, taps: Taps, dim: int) -> Tensor:
    """Weighted sum of shifted copies along `dim`, one tap after the other, in the dtype of `x`."""
    shape = [-1 if axis == dim else 1 for axis in range(x.ndim)]
    out = x.index_select(dim, taps.index[:, 0]) * taps.weight[:, 0].view(shape)
    for t in range(1, taps.index.shape[1]):
        out += x.index_select(dim, taps.index[:, t]) * taps.weight[:, t].view(shape)
    return out
