"""The golden checkpoints, loaded once each, and small fresh backbones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from vla_gym.observation import encode_instruction
from vla_policies import Conventions, VLAPolicy
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


def load(folder: Path, cameras: tuple[str, ...]) -> Golden:
    backbone = VLAPolicy.from_pretrained(folder / "checkpoint", device="cpu").backbone
    assert isinstance(backbone, SmolVLABackbone)
    # Copied: a tensor's place in the file's buffer decides which kernels the CPU takes.
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "golden.safetensors").items()}
    notes = json.loads((folder / "golden.json").read_text(encoding="utf-8"))
    return Golden(folder, cameras, backbone.eval(), tensors, notes)


@pytest.fixture(scope="session", params=CAMERAS)
def golden(request: pytest.FixtureRequest, golden_root: Path) -> Golden:
    folder = golden_root / request.param
    if not folder.is_dir():
        pytest.skip(f"no golden fixtures at {folder}")
    return load(folder, CAMERAS[request.param])


@pytest.fixture(scope="session")
def joint(golden_root: Path) -> Golden:
    """The one whose expert has layers of both kinds, with absent cameras."""
    folder = golden_root / "smolvla_tiny"
    if not folder.is_dir():
        pytest.skip(f"no golden fixtures at {folder}")
    return load(folder, CAMERAS["smolvla_tiny"])


CONVENTIONS = Conventions(cameras=("image",), image_size=64, state_dim=3, chunk=4, action_dim=2)


@pytest.fixture
def make_backbone() -> Callable[..., SmolVLABackbone]:
    """`make_backbone(**options)`: tiny random weights for chunks of 4 x 2, moved off their start."""

    def build(**options: Any) -> SmolVLABackbone:
        torch.manual_seed(0)
        backbone = SmolVLABackbone.fresh(CONVENTIONS, {"size": "tiny", **options})
        with torch.no_grad():
            for parameter in backbone.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        return backbone

    return build


@pytest.fixture
def obs() -> dict[str, Tensor]:
    """Three observations of one camera, sentences of different lengths."""
    rng = np.random.default_rng(0)
    sentences = ("reach the red block", "put the bowl on the plate, please", "open")
    return {
        "image": torch.from_numpy(rng.integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)),
        "state": torch.from_numpy(rng.uniform(-1, 1, (3, 3)).astype(np.float32)),
        "instruction": torch.from_numpy(np.stack([encode_instruction(sentence) for sentence in sentences])),
    }
