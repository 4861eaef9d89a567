"""TensorFlow's JPEG round trip: encode and decode in one go, bit for bit, batched, on device.

Robot data sets keep their frames as JPEG, and evaluation scripts therefore send every camera image through
TensorFlow's encoder and decoder first. By hand because the decoders of Pillow and torchvision use another
inverse transform, so that pixels differ, and TensorFlow is no dependency. Only the lossy steps are here (colour
conversion, chroma halving, cosine transform, quantisation); entropy coding is lossless. Integer arithmetic as in
libjpeg-turbo with TensorFlow's settings: quality 95, 4:2:0, the accurate transform forwards, the fast one backwards,
smooth chroma upsampling. Sources: jccolor.c, jcsample.c, jfdctint.c, jidctfst.c, jdsample.c, jdcolor.c.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

QUALITY = 95

# The standard's example tables (ITU T.81, K.1 and K.2).
_LUMA = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMA = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)
# round(2^14 s_i s_j) with s_0 = 1, s_k = sqrt(2) cos(k pi / 16): the factors the fast inverse transform leaves out.
_AAN_ROW = (16384, 22725, 21407, 19266, 16384, 12873, 8867, 4520)
_AAN = (
    _AAN_ROW,
    (22725, 31521, 29692, 26722, 22725, 17855, 12299, 6270),
    (21407, 29692, 27969, 25172, 21407, 16819, 11585, 5906),
    (19266, 26722, 25172, 22654, 19266, 15137, 10426, 5315),
    _AAN_ROW,
    (12873, 17855, 16819, 15137, 12873, 10114, 6967, 3552),
    (8867, 12299, 11585, 10426, 8867, 6967, 4799, 2446),
    (4520, 6270, 5906, 5315, 4520, 3552, 2446, 1247),
)


def jpeg_round_trip(image_BHWC: Tensor) -> Tensor:
    """Uint8 RGB `[B, H, W, 3]` as it comes back from TensorFlow's `encode_jpeg` and `decode_image`."""
    height, width = image_BHWC.shape[1:3]
    red, green, blue = image_BHWC.to(torch.int32).unbind(-1)
    luma = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    offset = (128 << 16) + 32767
    blueness = (-11059 * red - 21709 * green + 32768 * blue + offset) >> 16
    redness = (32768 * red - 27439 * green - 5329 * blue + offset) >> 16
    luma = _through_blocks(luma, "luma")
    blueness, redness = (
        _double(_through_blocks(_halve(plane), "chroma"))[:, :height, :width] - 128 for plane in (blueness, redness)
    )
    rgb = (
        luma + ((91881 * redness + 32768) >> 16),
        luma + ((-22554 * blueness - 46802 * redness + 32768) >> 16),
        luma + ((116130 * blueness + 32768) >> 16),
    )
    return torch.stack(rgb, dim=-1).clamp(0, 255).to(torch.uint8)


@lru_cache(maxsize=2)
def quantisation_table(name: str) -> Tensor:
    """The table "luma" or "chroma" at `QUALITY` (50 or more), int32 `[8, 8]`."""
    base = torch.tensor(_LUMA if name == "luma" else _CHROMA, dtype=torch.int32)
    return ((base * (200 - 2 * QUALITY) + 50) // 100).clamp(1, 255)


def _through_blocks(plane_BHW: Tensor, table: str) -> Tensor:
    """One colour plane cut into 8 x 8 blocks, transformed, rounded to the table's steps, and back."""
    batch, height, width = plane_BHW.shape
    padded = _extend(plane_BHW, -height % 8, -width % 8)
    rows, columns = padded.shape[1] // 8, padded.shape[2] // 8
    blocks = padded.view(batch, rows, 8, columns, 8).transpose(2, 3) - 128
    quant = quantisation_table(table).to(plane_BHW.device)
    transformed = _forward_pass(_forward_pass(blocks, dim=-1, last=False), dim=-2, last=True)
    step = quant << 3
    coefficient = transformed.sign() * ((transformed.abs() + (step >> 1)) // step)
    scale = (quant * torch.tensor(_AAN, dtype=torch.int32, device=quant.device) + (1 << 11)) >> 12
    restored = _inverse_pass(_inverse_pass(coefficient * scale, dim=-2), dim=-1)
    pixels = ((restored >> 5) + 128).clamp(0, 255)
    return pixels.transpose(2, 3).reshape(batch, rows * 8, columns * 8)[:, :height, :width]


def _forward_pass(x: Tensor, dim: int, *, last: bool) -> Tensor:
    """One dimension of the accurate cosine transform (13-bit constants, 2 bits kept between the passes)."""
    d = x.unbind(dim)
    s0, s1, s2, s3 = d[0] + d[7], d[1] + d[6], d[2] + d[5], d[3] + d[4]
    t7, t6, t5, t4 = d[0] - d[7], d[1] - d[6], d[2] - d[5], d[3] - d[4]
    e0, e3, e1, e2 = s0 + s3, s0 - s3, s1 + s2, s1 - s2
    shift = 15 if last else 11
    turn = (e2 + e3) * 4433
    z5 = (t4 + t6 + t5 + t7) * 9633
    z1, z2 = (t4 + t7) * -7373, (t5 + t6) * -20995
    z3, z4 = (t4 + t6) * -16069 + z5, (t5 + t7) * -3196 + z5
    out = (
        _descale(e0 + e1, 2) if last else (e0 + e1) << 2,
        _descale(t7 * 12299 + z1 + z4, shift),
        _descale(turn + e3 * 6270, shift),
        _descale(t6 * 25172 + z2 + z3, shift),
        _descale(e0 - e1, 2) if last else (e0 - e1) << 2,
        _descale(t5 * 16819 + z2 + z4, shift),
        _descale(turn - e2 * 15137, shift),
        _descale(t4 * 2446 + z1 + z3, shift),
    )
    return torch.stack(out, dim=dim)


def _inverse_pass(x: Tensor, dim: int) -> Tensor:
    """One dimension of the fast inverse transform (8-bit constants, products cut off, not rounded)."""
    d = x.unbind(dim)
    e0, e1, e3 = d[0] + d[4], d[0] - d[4], d[2] + d[6]
    e2 = _times(d[2] - d[6], 362) - e3
    a0, a3, a1, a2 = e0 + e3, e0 - e3, e1 + e2, e1 - e2
    z13, z10, z11, z12 = d[5] + d[3], d[5] - d[3], d[1] + d[7], d[1] - d[7]
    b7 = z11 + z13
    z5 = _times(z10 + z12, 473)
    b6 = _times(z10, -669) + z5 - b7
    b5 = _times(z11 - z13, 362) - b6
    b4 = _times(z12, 277) - z5 + b5
    return torch.stack((a0 + b7, a1 + b6, a2 + b5, a3 - b4, a3 + b4, a2 - b5, a1 - b6, a0 - b7), dim=dim)


def _halve(plane_BHW: Tensor) -> Tensor:
    """Means of 2 x 2 pixels; the rounding alternates along a row so that no shade drifts."""
    even = _extend(plane_BHW, plane_BHW.shape[1] % 2, plane_BHW.shape[2] % 2)
    total = even[:, ::2, ::2] + even[:, ::2, 1::2] + even[:, 1::2, ::2] + even[:, 1::2, 1::2]
    bias = 1 + torch.arange(total.shape[2], dtype=torch.int32, device=total.device) % 2
    return (total + bias) >> 2


def _double(plane_BHW: Tensor) -> Tensor:
    """Twice the size, each new pixel 3/4 the nearer and 1/4 the farther neighbour in both directions."""
    above, below = (
        torch.cat([plane_BHW[:, :1], plane_BHW[:, :-1]], dim=1),
        torch.cat([plane_BHW[:, 1:], plane_BHW[:, -1:]], dim=1),
    )
    rows = torch.stack([3 * plane_BHW + above, 3 * plane_BHW + below], dim=2).flatten(1, 2)
    left = torch.cat([rows[..., :1], rows[..., :-1]], dim=2)
    right = torch.cat([rows[..., 1:], rows[..., -1:]], dim=2)
    return torch.stack([(3 * rows + left + 8) >> 4, (3 * rows + right + 7) >> 4], dim=3).flatten(2, 3)


def _extend(plane_BHW: Tensor, below: int, right: int) -> Tensor:
    """Repeat the last row and column."""
    if not below and not right:
        return plane_BHW
    return functional.pad(plane_BHW.float(), (0, right, 0, below), mode="replicate").to(plane_BHW.dtype)


def _descale(x: Tensor, bits: int) -> Tensor:
    return (x + (1 << (bits - 1))) >> bits


def _times(x: Tensor, constant: int) -> Tensor:
    return (x * constant) >> 8
