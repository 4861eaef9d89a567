"""The tiny OpenVLA-OFT checkpoint and the numbers its originals gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.vla_policies.openvla.conftest import golden, samples  # noqa: F401 - fixtures
from vla_gym.observation import encode_instruction


@pytest.fixture(scope="session")
def folder(golden_root: Path) -> Path:
    return golden_root / "openvla_oft_tiny"


@pytest.fixture(scope="session")
def observe(golden: dict[str, Tensor], samples: list[dict[str, Any]]) -> Any:  # noqa: F811
    """`observe(i)`: sample i as an observation of a batch of one."""

    def sample(i: int) -> dict[str, Tensor]:
        return {
            "image": golden[f"s{i}.image_uint8"][None],
            "wrist_image": golden[f"s{i}.wrist_uint8"][None],
            "state": golden[f"s{i}.proprio_raw"][None],
            "instruction": torch.from_numpy(encode_instruction(samples[i]["instruction"]))[None],
        }

    return sample
