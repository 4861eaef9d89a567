"""The tiny OpenVLA-OFT checkpoint and the numbers its originals gave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from vla_gym.observation import encode_instruction


@pytest.fixture(scope="session")
def folder(golden_root: Path) -> Path:
    return golden_root / "openvla_oft_tiny"


@pytest.fixture(scope="session")
def golden(folder: Path) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in load_file(folder / "golden.safetensors").items()}


@pytest.fixture(scope="session")
def samples(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "golden.json").read_text())["samples"]
    return found


@pytest.fixture(scope="session")
def observe(golden: dict[str, Tensor], samples: list[dict[str, Any]]) -> Any:
    """`observe(i)`: sample i as an observation of a batch of one."""

    def sample(i: int) -> dict[str, Tensor]:
        return {
            "image": golden[f"s{i}.image_uint8"][None],
            "wrist_image": golden[f"s{i}.wrist_uint8"][None],
            "state": golden[f"s{i}.proprio_raw"][None],
            "instruction": torch.from_numpy(encode_instruction(samples[i]["instruction"]))[None],
        }

    return sample
