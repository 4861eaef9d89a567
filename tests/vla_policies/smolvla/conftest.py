"""The golden checkpoints, loaded once each, and small fresh backbones."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from vla_policies import VLAPolicy
from vla_policies.smolvla.model import SmolVLABackbone
from vla_policies.types import PolicyInputs

CAMERAS = {"smolvla_tiny": ("camera1", "camera2"), "smolvla_tiny/all_cross": ("image", "image2")}
"""Folder of golden tensors -> names of the cameras that its inputs have."""


@dataclass(frozen=True)
class Golden:
    """A loaded checkpoint and what the original implementation made of its inputs."""

    folder: Path
    cameras: tuple[str, ...]
    backbone: SmolVLABackbone
    tensors: dict[str, Tensor]
    notes: dict[str, Any]

    @property
    def inputs(self) -> PolicyInputs:
        """The base case: two samples, every camera there."""
        processor = self.backbone.processor
        text_BL, mask_BL = processor.tokenizer.batch(self.notes["tasks"])
        state_BS = self.tensors["state_normalized"]
        return PolicyInputs(
            pixels_BMCHW=torch.stack([self.tensors[f"pixel_{name}"] for name in self.cameras], dim=1),
            text_BL=text_BL,
            text_mask_BL=mask_BL,
            state_BS=functional.pad(state_BS, (0, 32 - state_BS.shape[1])),
        )


@cache
def load(root: Path, name: str) -> Golden:
    folder = root / name
    if not folder.is_dir():
        pytest.skip(f"no golden fixtures at {folder}")
    backbone = VLAPolicy.from_pretrained(folder / "checkpoint", device="cpu").backbone
    assert isinstance(backbone, SmolVLABackbone)
    # Copied: a tensor's place in the file's buffer decides which kernels the CPU takes.
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "golden.safetensors").items()}
    notes = json.loads((folder / "golden.json").read_text(encoding="utf-8"))
    return Golden(folder, CAMERAS[name], backbone.eval(), tensors, notes)


@pytest.fixture(scope="session", params=CAMERAS)
def golden(request: pytest.FixtureRequest, golden_root: Path) -> Golden:
    return load(golden_root, request.param)


@pytest.fixture(scope="session")
def joint(golden_root: Path) -> Golden:
    """The one whose expert has layers of both kinds, with absent cameras."""
    return load(golden_root, "smolvla_tiny")
