"""The two golden checkpoints, loaded once each, and small fresh backbones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from vla_policies import VLAPolicy
from vla_policies.pi0.model import Pi0Backbone
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
