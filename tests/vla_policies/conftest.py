"""Tiny policies and observations; no simulator, no download."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vla_gym.observation import encode_instruction
from vla_policies import Conventions, VLAPolicy
from vla_policies.backbone import Backbone
from vla_policies.registry import family_class

TINY = {"size": "tiny", "width": 32, "heads": 2}
SENTENCES = ("reach the red block", "put the bowl on the plate, please", "open")


@pytest.fixture
def conventions() -> Conventions:
    """Two 32 px cameras, 3 numbers of state, chunks of 2 x 4."""
    return Conventions(cameras=("image", "wrist_image"), image_size=32, state_dim=3, chunk=2, action_dim=4)


@pytest.fixture
def make_policy(conventions: Conventions) -> Callable[..., VLAPolicy]:
    """`make_policy(**policy_kwargs)` on the conventions' spaces, seed 0, learning rate 1e-3."""

    def build(**policy_kwargs: Any) -> VLAPolicy:
        torch.manual_seed(0)
        settings = {"backbone": "nano", **policy_kwargs}
        if settings["backbone"] == "nano":
            settings.setdefault("backbone_kwargs", TINY)
        spaces = conventions.observation_space(), conventions.action_space()
        return VLAPolicy(*spaces, lambda _: 1e-3, **settings)

    return build


@pytest.fixture
def policy(make_policy: Callable[..., VLAPolicy]) -> VLAPolicy:
    return make_policy()


@pytest.fixture
def make_obs() -> Callable[..., dict[str, np.ndarray]]:
    """`make_obs(num, seed=0, size=32)`: a batch in the layout of `as_sb3()`, sentences of different lengths."""

    def build(num: int, seed: int = 0, size: int = 32) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        return {
            "image": rng.integers(0, 256, (num, size, size, 3), dtype=np.uint8),
            "wrist_image": rng.integers(0, 256, (num, size, size, 3), dtype=np.uint8),
            "state": rng.normal(size=(num, 3)).astype(np.float32),
            "instruction": np.stack([encode_instruction(SENTENCES[i % len(SENTENCES)]) for i in range(num)]),
        }

    return build


FLOW_CONVENTIONS = Conventions(cameras=("image",), image_size=64, state_dim=3, chunk=4, action_dim=2)


@pytest.fixture
def make_flow() -> Callable[..., Any]:
    """`make_flow("pi0", **options)`: tiny random weights for chunks of 4 x 2, moved off their start."""

    def build(family: str, **options: Any) -> Backbone:
        torch.manual_seed(0)
        backbone = family_class(family).fresh(FLOW_CONVENTIONS, {"size": "tiny", **options})
        with torch.no_grad():
            for parameter in backbone.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        return backbone

    return build


@pytest.fixture
def obs() -> dict[str, torch.Tensor]:
    """Three observations of one camera, sentences of different lengths."""
    rng = np.random.default_rng(0)
    return {
        "image": torch.from_numpy(rng.integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)),
        "state": torch.from_numpy(rng.uniform(-1, 1, (3, 3)).astype(np.float32)),
        "instruction": torch.from_numpy(np.stack([encode_instruction(sentence) for sentence in SENTENCES])),
    }


def edit_json(path: Path, change: Callable[[dict[str, Any]], object] | None = None, **values: Any) -> None:
    """Change a JSON file's object in place: set values, or what `change` does to it."""
    content = json.loads(path.read_text())
    content.update(values)
    if change is not None:
        change(content)
    path.write_text(json.dumps(content))


def tiny_policy(family: str, options: Mapping[str, Any] | None = None, **settings: Any) -> VLAPolicy:
    """A policy of a family's smallest size, the same at each call."""
    torch.manual_seed(0)
    chunk = 1 if family == "openvla" else 2
    conventions = Conventions(cameras=("image",), image_size=56, state_dim=3, chunk=chunk, action_dim=4)
    spaces = conventions.observation_space(), conventions.action_space()
    kwargs = {"size": "tiny", **(options or {})}
    return VLAPolicy(*spaces, lambda _: 1e-2, backbone=family, backbone_kwargs=kwargs, **settings)


def two_observations() -> dict[str, torch.Tensor]:
    """Observations of `tiny_policy`, with sentences of different lengths."""
    generator = torch.Generator().manual_seed(0)
    sentences = [torch.from_numpy(encode_instruction(sentence)) for sentence in ("reach the block", "open")]
    return {
        "image": torch.randint(0, 256, (2, 56, 56, 3), dtype=torch.uint8, generator=generator),
        "state": torch.rand(2, 3, generator=generator),
        "instruction": torch.stack(sentences),
    }
