from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from vla_policies.openvla.jpeg import jpeg_round_trip, quantisation_table


@pytest.fixture(scope="session")
def golden(golden_root: Path) -> dict[str, Tensor]:
    return load_file(golden_root / "image_preproc" / "golden.safetensors")


@pytest.mark.parametrize("i", [0, 1])
def test_jpeg_is_tensorflows_bit_for_bit(golden: dict[str, Tensor], i: int) -> None:
    assert torch.equal(jpeg_round_trip(golden[f"s{i}.image_uint8"][None])[0], golden[f"s{i}.jpeg_decoded"])


@pytest.mark.parametrize("size", [(16, 16), (17, 30), (9, 23), (8, 1)])
def test_jpeg_of_one_colour_changes_it_by_a_rounding_only(size: tuple[int, int]) -> None:
    image = torch.tensor([200, 40, 90], dtype=torch.uint8).expand(1, *size, 3)
    assert (jpeg_round_trip(image).int() - image.int()).abs().max() <= 2


def test_quality_95_divides_the_standards_tables_by_ten() -> None:
    # (16 * 10 + 50) // 100 = 2; (99 * 10 + 50) // 100 = 10; never below 1.
    assert quantisation_table("luma")[0, 0] == 2
    assert quantisation_table("chroma")[7, 7] == 10
    assert quantisation_table("luma").min() >= 1
