"""Families and the shapes in which they are measured: random weights, hashed words, no download."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from vla_gym.observation import encode_instruction
from vla_policies import VLAPolicy
from vla_policies.loading import fresh_options
from vla_policies.modules.quantization import Scheme
from vla_policies.registry import FAMILIES, family_class

LEARNING_RATE = 1e-4
SENTENCES = ("open the middle drawer", "put the bowl on the stove", "turn on the stove", "push the plate")


@dataclass(frozen=True, kw_only=True)
class Model:
    """`backbone_kwargs` of one family."""

    sizes: Mapping[str, str]
    """Size of the benchmark -> the family's `size`."""
    common: Mapping[str, Any] = field(default_factory=dict)
    half: Mapping[str, Any] = field(default_factory=dict)
    """Large weights in bfloat16; empty where the family has none."""
    recompute: Mapping[str, Any] = field(default_factory=dict)
    """Activations computed again on the way back."""
    schemes: tuple[Scheme, ...] = ()
    """Ways to keep the frozen weights in fewer bits."""


_FLOW: dict[str, Any] = {"half": {"vlm_dtype": "bfloat16"}, "recompute": {"recompute_activations": True}}
_TABLE: dict[str, Model] = {
    "nano": Model(sizes={"tiny": "tiny", "full": "small"}),
    "openvla-oft": Model(
        sizes={"tiny": "tiny", "full": "7b"},
        common={"lora": {"rank": 32}},
        half={"dtype": "bfloat16"},
        recompute={"recompute": True},
        schemes=("int8", "nf4"),
    ),
    "pi0": Model(sizes={"tiny": "tiny", "full": "full"}, **_FLOW),
    "smolvla": Model(sizes={"tiny": "tiny", "full": "full"}, common={"train_expert_only": True}, **_FLOW),
}
MODELS = {family: model for family, model in _TABLE.items() if family in FAMILIES}
"""Family -> how it is measured: those that are here."""


def backbone_options(family: str, size: str, *, recompute: bool = False) -> dict[str, Any]:
    """`backbone_kwargs` of a family in one of the benchmark's sizes.

    A tokenizer that would be downloaded gives way to hashed words, which cost the same.
    """
    model = MODELS[family]
    options = {"size": model.sizes[size], **model.common, **model.half, **(model.recompute if recompute else {})}
    if "vlm_dtype" not in model.half:
        return options
    found = family_class(family)
    with torch.device("meta"):
        config = fresh_options(found.fresh(found.default_conventions, options))
    return {**config, "preprocessing": {**config["preprocessing"], "tokenizer": "words"}}


def build(family: str, options: Mapping[str, Any], device: torch.device, *, compile: bool = False) -> VLAPolicy:
    """A policy with random weights for the family's usual observations."""
    torch.manual_seed(0)
    usual = family_class(family).default_conventions
    spaces = usual.observation_space(), usual.action_space()
    with device:
        policy = VLAPolicy(*spaces, lambda _: LEARNING_RATE, backbone=family, backbone_kwargs=options, compile=compile)
    return policy.to(device)


def observations(policy: VLAPolicy, num: int) -> dict[str, np.ndarray]:
    """Images of noise `[num, H, W, 3]`, states of zeros, sentences."""
    rng, own = np.random.default_rng(0), policy.conventions
    shape = (num, own.image_size, own.image_size, 3)
    obs = {camera: rng.integers(0, 256, shape, dtype=np.uint8) for camera in own.cameras}
    if own.state_dim:
        obs["state"] = np.zeros((num, own.state_dim), np.float32)
    obs["instruction"] = np.stack([encode_instruction(SENTENCES[i % len(SENTENCES)]) for i in range(num)])
    return obs
