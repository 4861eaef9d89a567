"""TensorFlow's JPEG round trip: encode and decode in one go, bit for bit, batched, on device.

Robot data sets keep their frames as JPEG, and evaluation scripts therefore send every camera image through
TensorFlow's encoder and decoder first. By hand because the decoders of Pillow and torchvision use another
inverse transform, so that pixels differ, and TensorFlow is no dependency. Only the lossy steps are here (colour
conversion, chroma halving, cosine transform, quantisation); entropy coding is lossless. Integer arithmetic as in
libjpeg-turbo with TensorFlow's settings: quality 95, 4:2:0, the accurate transform forwards, the fast one backwards,
smooth chroma upsampling. Sources: jccolor.c, jcsample.c, jfdctint.c, jidctfst.c, jdsample.c, jdcolor.c.

Every step is linear but for shifts to the right. Between two shifts it is one matrix product, in float64, which holds
these integers and their fractions of a power of two exactly whatever the order of a sum; a shift is `floor`. A GPU is
then asked for some fifty kernels instead of seven hundred, and float32's TF32 cannot touch it.
"""

from __future__ import annotations

from collections.abc import Sequence
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


_TO_YCC = ((19595, 38470, 7471), (-11059, -21709, 32768), (32768, -27439, -5329))
"""Y, Cb and Cr from red, green and blue, over 2^16."""
_TO_YCC_BIAS = (32768, (128 << 16) + 32767, (128 << 16) + 32767)
_TO_RGB = ((0, 91881), (-22554, -46802), (116130, 0))
"""Contributions of Cb and Cr, less 128, to red, green and blue, over 2^16."""


def jpeg_round_trip(image_BHWC: Tensor) -> Tensor:
    """Uint8 RGB `[B, H, W, 3]` as it comes back from TensorFlow's `encode_jpeg` and `decode_image`."""
    height, width = image_BHWC.shape[1:3]
    constants = _constants(image_BHWC.device)
    ycc_BHWC = functional.linear(image_BHWC.double(), constants["to_ycc"], constants["to_ycc_bias"]).floor_()
    luma_BHW = _through_blocks(ycc_BHWC[..., 0], constants, "luma")
    chroma = _halve(ycc_BHWC[..., 1:].permute(3, 0, 1, 2).flatten(0, 1))
    chroma = _double(_through_blocks(chroma, constants, "chroma"))[:, :height, :width]
    chroma_BHW2 = chroma.unflatten(0, (2, -1)).permute(1, 2, 3, 0)
    added_BHWC = functional.linear(chroma_BHW2, constants["to_rgb"], constants["to_rgb_bias"]).floor_()
    return added_BHWC.add_(luma_BHW[..., None]).clamp_(0, 255).to(torch.uint8)


def quantisation_table(name: str) -> Tensor:
    """The table "luma" or "chroma" at `QUALITY` (50 or more), int32 `[8, 8]`."""
    base = torch.tensor(_LUMA if name == "luma" else _CHROMA, dtype=torch.int32)
    return ((base * (200 - 2 * QUALITY) + 50) // 100).clamp(1, 255)


@lru_cache(maxsize=8)
def _constants(device: torch.device) -> dict[str, Tensor]:
    shift = 2.0**-16
    to_rgb = _matrix(_TO_RGB) * shift
    products, sums = _inverse_matrices()
    constants = {
        "to_ycc": _matrix(_TO_YCC) * shift,
        "to_ycc_bias": _matrix(_TO_YCC_BIAS) * shift,
        "to_rgb": to_rgb,
        "to_rgb_bias": 0.5 - 128.0 * to_rgb.sum(dim=1),
        "first": _forward_matrix(last=False),
        "last": _forward_matrix(last=True),
        "half": torch.full((8,), 0.5, dtype=torch.float64),
        "products": products,
        "sums": sums,
    }
    for name in ("luma", "chroma"):
        table = quantisation_table(name)
        constants[f"{name}_step"] = (table << 3).double()
        # The factors that the fast inverse transform leaves out are part of its table.
        constants[f"{name}_scale"] = ((table * torch.tensor(_AAN, dtype=torch.int32) + (1 << 11)) >> 12).double()
    return {name: constant.to(device) for name, constant in constants.items()}


def _through_blocks(plane_BHW: Tensor, constants: dict[str, Tensor], table: str) -> Tensor:
    """One colour plane cut into 8 x 8 blocks, transformed, rounded to the table's steps, and back; float64."""
    batch, height, width = plane_BHW.shape
    padded = _extend(plane_BHW, -height % 8, -width % 8)
    rows, columns = padded.shape[1] // 8, padded.shape[2] // 8
    blocks = padded.reshape(batch, rows, 8, columns, 8).transpose(2, 3) - 128.0
    transformed = functional.linear(blocks, constants["first"], constants["half"]).floor_().transpose(-1, -2)
    transformed = functional.linear(transformed, constants["last"], constants["half"]).floor_().transpose(-1, -2)
    step = constants[f"{table}_step"]
    # Half a step away from zero, then cut off: rounded.
    coefficient = (transformed + transformed.sign() * (step / 2)).div_(step).trunc_()
    restored = coefficient.mul_(constants[f"{table}_scale"]).transpose(-1, -2)
    for _ in range(2):
        restored = functional.linear(restored, constants["products"]).floor_()
        restored = functional.linear(restored, constants["sums"]).transpose(-1, -2)
    pixels = (restored.transpose(-1, -2) / 32.0).floor_().add_(128.0).clamp_(0, 255)
    return pixels.transpose(2, 3).reshape(batch, rows * 8, columns * 8)[:, :height, :width]


def _forward_matrix(*, last: bool) -> Tensor:
    """One dimension of the accurate cosine transform (13-bit constants, 2 bits kept between the passes), float64
    `[8, 8]`: add 1/2 and cut off what is left of the point."""
    d = torch.eye(8, dtype=torch.float64).unbind()
    s0, s1, s2, s3 = d[0] + d[7], d[1] + d[6], d[2] + d[5], d[3] + d[4]
    t7, t6, t5, t4 = d[0] - d[7], d[1] - d[6], d[2] - d[5], d[3] - d[4]
    e0, e3, e1, e2 = s0 + s3, s0 - s3, s1 + s2, s1 - s2
    turn = (e2 + e3) * 4433
    z5 = (t4 + t6 + t5 + t7) * 9633
    z1, z2 = (t4 + t7) * -7373, (t5 + t6) * -20995
    z3, z4 = (t4 + t6) * -16069 + z5, (t5 + t7) * -3196 + z5
    plain = 2.0**-2 if last else 2.0**2
    scale = 2.0**-15 if last else 2.0**-11
    out = (
        (e0 + e1) * plain,
        (t7 * 12299 + z1 + z4) * scale,
        (turn + e3 * 6270) * scale,
        (t6 * 25172 + z2 + z3) * scale,
        (e0 - e1) * plain,
        (t5 * 16819 + z2 + z4) * scale,
        (turn - e2 * 15137) * scale,
        (t4 * 2446 + z1 + z3) * scale,
    )
    return torch.stack(out)


def _inverse_matrices() -> tuple[Tensor, Tensor]:
    """One dimension of the fast inverse transform (8-bit constants, products cut off, not rounded): the matrix
    `[9, 8]` before the products are cut off, integers among them, and the matrix `[8, 9]` after it."""
    d = torch.eye(8, dtype=torch.float64).unbind()
    e3 = d[2] + d[6]
    z13, z10, z11, z12 = d[5] + d[3], d[5] - d[3], d[1] + d[7], d[1] - d[7]
    products = (
        d[0] + d[4],
        d[0] - d[4],
        e3,
        z11 + z13,
        (d[2] - d[6]) * (362 / 256),
        (z10 + z12) * (473 / 256),
        z10 * (-669 / 256),
        (z11 - z13) * (362 / 256),
        z12 * (277 / 256),
    )
    e0, e1, e3, b7, p2, z5, p6, p5, p4 = torch.eye(9, dtype=torch.float64).unbind()
    e2 = p2 - e3
    a0, a3, a1, a2 = e0 + e3, e0 - e3, e1 + e2, e1 - e2
    b6 = p6 + z5 - b7
    b5 = p5 - b6
    b4 = p4 - z5 + b5
    sums = (a0 + b7, a1 + b6, a2 + b5, a3 - b4, a3 + b4, a2 - b5, a1 - b6, a0 - b7)
    return torch.stack(products), torch.stack(sums)


def _halve(plane_BHW: Tensor) -> Tensor:
    """Means of 2 x 2 pixels; the rounding alternates along a row so that no shade drifts."""
    even = _extend(plane_BHW, plane_BHW.shape[1] % 2, plane_BHW.shape[2] % 2)
    mean = functional.avg_pool2d(even[:, None], 2)[:, 0]
    return (mean + _alternating(mean.shape[2], (0.25, 0.5), mean.device)).floor_()


def _double(plane_BHW: Tensor) -> Tensor:
    """Twice the size, each new pixel 3/4 the nearer and 1/4 the farther neighbour in both directions."""
    height, width = plane_BHW.shape[1:]
    device = plane_BHW.device
    wide = functional.linear(plane_BHW, _doubling(width, device), _alternating(2 * width, (8 / 16, 7 / 16), device))
    # The rows' weights sum to 1, so the rounding that is added before them arrives whole.
    return torch.matmul(_doubling(height, device), wide).floor_()


@lru_cache(maxsize=16)
def _doubling(size: int, device: torch.device) -> Tensor:
    """Weights of a line's pixels in one of twice the length, float64 `[2 size, size]`."""
    place = torch.arange(size)
    weight = torch.zeros(size, 2, size, dtype=torch.float64)
    weight[place, :, place] = 0.75
    weight[place, 0, (place - 1).clamp(min=0)] += 0.25
    weight[place, 1, (place + 1).clamp(max=size - 1)] += 0.25
    return weight.flatten(0, 1).to(device)


@lru_cache(maxsize=16)
def _alternating(size: int, values: tuple[float, float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).repeat(-(-size // 2))[:size].to(device)


def _extend(plane_BHW: Tensor, below: int, right: int) -> Tensor:
    return functional.pad(plane_BHW, (0, right, 0, below), mode="replicate") if below or right else plane_BHW


def _matrix(values: Sequence[object]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
