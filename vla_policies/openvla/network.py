"""The network with the checkpoints' key names: two image towers, a projector, Llama-2."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_policies.modules.lora import linear_rows
from vla_policies.modules.quantization import Scheme, quantize_layers
from vla_policies.modules.training import CheckpointFn, checkpoint_fn
from vla_policies.openvla.config import NUM_BINS, OpenVLAConfig, TowerShape
from vla_policies.openvla.llama import build_llama
from vla_policies.openvla.vision import LayerScale, VisionTower

LANGUAGE_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
"""The language model's layers alone, so that the image towers stay frozen."""
LORA_TARGETS = ("proj", "qkv", "fc1", "fc2", "q", "kv", "fc3", "out_proj", *LANGUAGE_TARGETS)
"""Layers with a LoRA adapter in RLinf's recipe: every linear one and the patch convolutions."""


class VisionBackbone(nn.Module):
    """Both towers on the same image, their patches joined on the feature axis."""

    def __init__(self, shapes: tuple[TowerShape, ...]) -> None:
        super().__init__()
        self.featurizer = VisionTower(shapes[0])
        self.fused_featurizer = VisionTower(shapes[1]) if len(shapes) > 1 else None

    def forward(self, pixels_BCHW: Tensor, run_block: CheckpointFn) -> Tensor:
        """One image, 3 channels for each tower, to patches `[B, P, W]`."""
        features = [self.featurizer(pixels_BCHW[:, :3], run_block)]
        if self.fused_featurizer is not None:
            features.append(self.fused_featurizer(pixels_BCHW[:, 3:], run_block))
        return torch.cat(features, dim=-1)


class Projector(nn.Module):
    """Patches into the language model's space; three layers for two towers, two for one."""

    def __init__(self, vision: int, width: int, *, fused: bool) -> None:
        super().__init__()
        self.fc1 = nn.Linear(vision, 4 * vision if fused else width)
        self.fc2 = nn.Linear(4 * vision if fused else width, width)
        self.fc3 = nn.Linear(width, width) if fused else None

    def forward(self, patch_BPW: Tensor) -> Tensor:
        """`[B, P, W]` to `[B, P, D]`, exact GELU between the layers."""
        x = self.fc2(functional.gelu(self.fc1(patch_BPW)))
        return x if self.fc3 is None else self.fc3(functional.gelu(x))


class PrismaticNetwork(nn.Module):
    """All tensors of a published checkpoint; decoding is up to the families."""

    def __init__(self, config: OpenVLAConfig) -> None:
        super().__init__()
        towers = config.towers
        self.vision_backbone = VisionBackbone(towers)
        text_config = dict(config.official["text_config"])
        self.language_model = build_llama(text_config)
        width = self.language_model.config.hidden_size
        self.projector = Projector(sum(tower.width for tower in towers), width, fused=len(towers) > 1)
        self.first_action_id = config.first_action_id
        self.recompute = config.settings.recompute
        self.freeze_unused()

    @property
    def width(self) -> int:
        """D, features of a token."""
        return int(self.language_model.config.hidden_size)

    def freeze_unused(self) -> None:
        """Freeze the weights that no output depends on."""
        for tower in (self.vision_backbone.featurizer, self.vision_backbone.fused_featurizer):
            if tower is not None:
                for parameter in tower.unused_parameters():
                    parameter.requires_grad_(False)

    def quantize(self, scheme: Scheme, dtype: torch.dtype) -> None:
        """Keep the weights of all linear layers but the head in 8 or 4 bits; `dtype` is that of their products."""
        for part in (self.vision_backbone, self.projector, self.language_model.model):
            quantize_layers(part, scheme, dtype)

    def checkpoint_fn(self) -> CheckpointFn:
        """How blocks run, given whether gradients are on."""
        return checkpoint_fn(recompute=self.recompute)

    def encode_images(self, pixels_BMCHW: Tensor) -> Tensor:
        """Normalised pixels of M images to their projected patches, image by image, `[B, M * P, D]`."""
        batch, images = pixels_BMCHW.shape[:2]
        pixels = pixels_BMCHW.flatten(0, 1).to(self.language_model.model.embed_tokens.weight.dtype)
        patch_BPD = self.projector(self.vision_backbone(pixels, self.checkpoint_fn()))
        return patch_BPD.reshape(batch, images * patch_BPD.shape[1], -1)

    @property
    def image_encoder_frozen(self) -> bool:
        """Whether no weight of image towers and projector trains."""
        parts = (self.vision_backbone, self.projector)
        return not any(parameter.requires_grad for part in parts for parameter in part.parameters())

    def embed_tokens(self, ids_BL: Tensor) -> Tensor:
        """Embeddings of token ids, `[B, L, D]`."""
        out: Tensor = self.language_model.model.embed_tokens(ids_BL)
        return out

    def final_norm(self, x: Tensor) -> Tensor:
        """The language model's last norm."""
        out: Tensor = self.language_model.model.norm(x)
        return out

    def action_logits(self, hidden: Tensor) -> Tensor:
        """Logits of the action tokens, ids ascending, float32 `[..., V]`; no other row is computed."""
        return linear_rows(self.language_model.lm_head, hidden, self.first_action_id, NUM_BINS)


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
