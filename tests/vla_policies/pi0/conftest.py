"""The two golden checkpoints, loaded once each, and small fresh backbones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from vla_gym.observation import encode_instruction
from vla_policies import Conventions, VLAPolicy
from vla_policies.pi0.model import Pi0Backbone
from vla_policies.registry import family_class
from vla_policies.types import PolicyInputs


@dataclass(frozen=True)
class Golden:
    """A loaded checkpoint and what the original implementation made of its inputs."""

    folder: Path
    backbone: Pi0Backbone
    tensors: dict[str, Tensor]

    def rows(self, *samples: int, cameras: int) -> PolicyInputs:
        """Network inputs of some samples, seen by the first cameras."""
        index = list(samples)
        state = self.tensors.get("state", torch.zeros(3, 32))
        return PolicyInputs(
            pixels_BMCHW=self.tensors["pixel_values"][index, :cameras],
            text_BL=self.tensors["tokens"][index],
            text_mask_BL=self.tensors["token_mask"][index],
            state_BS=state[index],
        )


@pytest.fixture(scope="session", params=["pi0", "pi05"])
def golden(request: pytest.FixtureRequest, golden_root: Path) -> Golden:
    folder = golden_root / f"{request.param}_tiny"
    if not folder.is_dir():
        pytest.skip(f"no golden fixtures at {folder}")
    policy = VLAPolicy.from_pretrained(folder, device="cpu")
    assert isinstance(policy.backbone, Pi0Backbone)
    # Copied: a tensor's place in the file's buffer decides which kernels the CPU takes.
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "golden.safetensors").items()}
    return Golden(folder, policy.backbone.eval(), tensors)


CONVENTIONS = Conventions(cameras=("image",), image_size=56, state_dim=3, chunk=4, action_dim=2)


@pytest.fixture
def make_backbone() -> Callable[..., Pi0Backbone]:
    """`make_backbone("pi0", **options)`: tiny random weights for chunks of 4 x 2, moved off their start."""

    def build(family: str, **options: Any) -> Pi0Backbone:
        torch.manual_seed(0)
        backbone = family_class(family).fresh(CONVENTIONS, {"size": "tiny", **options})
        assert isinstance(backbone, Pi0Backbone)
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
        "image": torch.from_numpy(rng.integers(0, 256, (3, 56, 56, 3), dtype=np.uint8)),
        "state": torch.from_numpy(rng.uniform(-1, 1, (3, 3)).astype(np.float32)),
        "instruction": torch.from_numpy(np.stack([encode_instruction(sentence) for sentence in sentences])),
    }
