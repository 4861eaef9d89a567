"""OpenVLA networks with random weights: for benchmarks, smoke runs and tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from vla_gym.errors import unknown_name
from vla_policies.checkpoint_io.json_records import from_json, to_json
from vla_policies.conventions import Conventions
from vla_policies.openvla.config import OpenVLAConfig, Settings, check_options, config_from_json
from vla_policies.openvla.vision import LayerScale, VisionTower


def _tower(embed_dim: int, depth: int, num_heads: int) -> dict[str, int]:
    return {"embed_dim": embed_dim, "depth": depth, "num_heads": num_heads}


def _text(hidden_size: int, intermediate_size: int, num_layers: int, num_heads: int) -> dict[str, int]:
    return {
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
    }


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"image": 56, "towers": (_tower(32, 3, 2), _tower(48, 3, 3)), "text": _text(64, 176, 2, 4)},
    "100m": {"image": 224, "towers": (_tower(384, 8, 6), _tower(384, 8, 6)), "text": _text(512, 1376, 12, 8)},
    "7b": {"image": 224, "towers": (_tower(1024, 24, 16), _tower(1152, 27, 16)), "text": {}},
}
"""Name -> image side, overrides of the two timm models, overrides of the Llama-2-7B config."""


def fresh_config(conventions: Conventions, options: Mapping[str, Any], base: Settings, family: str) -> OpenVLAConfig:
    """The config of fresh weights: from a `size` and settings, or from the values of `OpenVLAConfig.to_json`."""
    if "official" in options:
        return config_from_json(options, f"backbone_kwargs of {family}")
    size = options["size"]
    if size not in SIZES:
        raise unknown_name(f"size of {family}", str(size), SIZES)
    own = {key: value for key, value in options.items() if key != "size"}
    check_options(own, family)
    given = replace(base, cameras=conventions.cameras, chunk=conventions.chunk)
    settings = from_json(Settings, {**to_json(given), **own}, f"backbone_kwargs of {family}")
    return OpenVLAConfig(
        official=_official(SIZES[size]),
        preprocessor={
            "means": [(0.485, 0.456, 0.406), (0.5,) * 3],
            "stds": [(0.229, 0.224, 0.225), (0.5,) * 3],
        },
        files={},
        unnorm_key=None,
        settings=settings,
    )


def _official(size: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "openvla",
        "architectures": ["OpenVLAForActionPrediction"],
        "timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"],
        "timm_model_kwargs": [dict(tower) for tower in size["towers"]],
        "image_sizes": [size["image"], size["image"]],
        "image_resize_strategy": "resize-naive",
        "use_fused_vision_backbone": True,
        "n_action_bins": 256,
        "pad_token_id": 32000,
        "pad_to_multiple_of": 64,
        "norm_stats": {},
        "text_config": {"model_type": "llama", "vocab_size": 32064, "pad_token_id": 32000, **size["text"]},
        "torch_dtype": "bfloat16",
    }


@torch.no_grad()
def initialise(network: nn.Module) -> None:
    """Random weights in the published networks' proportions: std 0.02, norms 1, biases 0."""
    for module in network.modules():
        if isinstance(module, VisionTower):
            for name, parameter in module.named_parameters(recurse=False):
                parameter.normal_(std=1e-6 if name == "reg_token" else 0.02)
        elif isinstance(module, LayerScale):
            module.scale_factor.fill_(1.0)
        elif isinstance(module, (nn.Linear, nn.Embedding, nn.Conv2d)):
            module.weight.normal_(std=0.02)
            bias = module._parameters.get("bias")
            if bias is not None:
                bias.zero_()
        else:
            for name, parameter in module.named_parameters(recurse=False):
                parameter.fill_(0.0 if name == "bias" else 1.0)
