from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from vla_gym.errors import BadValue
from vla_policies.openvla.jpeg import jpeg_round_trip, quantisation_table
from vla_policies.processing.images import crop_center, lanczos3, pad_to_square, resize_bicubic, resize_lanczos3
from vla_policies.processing.observations import channels_last


@pytest.fixture(scope="session")
def golden(golden_root: Path) -> dict[str, Tensor]:
    return load_file(golden_root / "image_preproc" / "golden.safetensors")


def assert_within_one_level(got: Tensor, wanted: Tensor) -> None:
    """At most one grey level off, on at most 0.01 % of the values."""
    assert got.dtype == wanted.dtype == torch.uint8
    assert got.shape == wanted.shape
    difference = (got.int() - wanted.int()).abs()
    assert difference.max() <= 1
    assert (difference > 0).double().mean() <= 1e-4


SAMPLES = pytest.mark.parametrize("i", [0, 1, 2])


@SAMPLES
def test_lanczos_is_tensorflows(golden: dict[str, Tensor], i: int) -> None:
    got = resize_lanczos3(golden[f"s{i}.image_uint8"][None], 224, 224)[0]
    assert_within_one_level(got, golden[f"s{i}.lanczos3_224_no_jpeg"])


@pytest.mark.parametrize("i", [0, 1])
def test_jpeg_is_tensorflows_bit_for_bit(golden: dict[str, Tensor], i: int) -> None:
    assert torch.equal(jpeg_round_trip(golden[f"s{i}.image_uint8"][None])[0], golden[f"s{i}.jpeg_decoded"])


@pytest.mark.parametrize("size", [(17, 30), (8, 1)])
def test_jpeg_of_one_colour_changes_it_by_a_rounding_only(size: tuple[int, int]) -> None:
    image = torch.tensor([200, 40, 90], dtype=torch.uint8).expand(1, *size, 3)
    assert (jpeg_round_trip(image).int() - image.int()).abs().max() <= 2


def test_quality_95_divides_the_standards_tables_by_ten() -> None:
    # (16 * 10 + 50) // 100 = 2; (99 * 10 + 50) // 100 = 10; never below 1.
    assert quantisation_table("luma")[0, 0] == 2
    assert quantisation_table("chroma")[7, 7] == 10
    assert quantisation_table("luma").min() >= 1


@SAMPLES
def test_jpeg_then_lanczos(golden: dict[str, Tensor], i: int) -> None:
    got = resize_lanczos3(jpeg_round_trip(golden[f"s{i}.image_uint8"][None]), 224, 224)[0]
    assert_within_one_level(got, golden[f"s{i}.resize_for_policy_224"])


@SAMPLES
def test_center_crops(golden: dict[str, Tensor], i: int) -> None:
    direct = crop_center(golden[f"s{i}.image_uint8"][None], 224, 224)[0]
    assert_within_one_level(direct, golden[f"s{i}.center_crop_direct"])
    after = crop_center(golden[f"s{i}.resize_for_policy_224"][None], 224, 224)[0]
    assert_within_one_level(after, golden[f"s{i}.center_crop_after_resize"])


@pytest.mark.parametrize("size", [(256, 256), (180, 240), (128, 96), (480, 640), (300, 224), (224, 224)])
def test_bicubic_is_pillows_bit_for_bit(size: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    wanted = np.asarray(Image.fromarray(image).resize((224, 224), Image.Resampling.BICUBIC))
    got = resize_bicubic(torch.from_numpy(image)[None], 224, 224)[0].numpy()
    assert np.array_equal(got, wanted)


def test_a_batch_is_its_images_one_by_one() -> None:
    batch = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (3, 50, 38, 3), dtype=np.uint8))
    for step in (
        jpeg_round_trip,
        lambda x: crop_center(x, 20, 20),
        lambda x: resize_bicubic(x, 20, 20),
        lambda x: resize_lanczos3(x, 20, 20),
    ):
        assert torch.equal(step(batch), torch.cat([step(image[None]) for image in batch]))


def test_padding_puts_the_odd_pixel_below() -> None:
    image = torch.full((1, 1, 4, 3), 9, dtype=torch.uint8)
    square = pad_to_square(image, (1, 2, 3))
    assert square.shape == (1, 4, 4, 3)
    assert square[0, :, 0].tolist() == [[1, 2, 3], [9, 9, 9], [1, 2, 3], [1, 2, 3]]


def test_channels_may_come_first() -> None:
    image = torch.zeros(2, 3, 5, 7, dtype=torch.uint8)
    assert channels_last(image, "image").shape == (2, 5, 7, 3)
    with pytest.raises(BadValue, match=r"'image' must be uint8 .* got torch.float32 \(2, 3, 5, 7\)"):
        channels_last(image.float(), "image")


def test_the_lanczos_kernel_by_hand() -> None:
    # sinc(1/2) sinc(1/6) = (2 / pi) (3 / pi) = 6 / pi^2.
    assert lanczos3(0.5) == pytest.approx(6 / np.pi**2)
    assert lanczos3(1.0) == pytest.approx(0.0, abs=1e-12)
    assert (lanczos3(0.0), lanczos3(3.0)) == (1.0, 0.0)
