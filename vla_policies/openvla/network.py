"""The network with the checkpoints' key names (timm's, but `scale_factor` for LayerScale): two image towers, a
projector, Llama-2.

Towers by hand, not timm: the checkpoints' names differ, and only what OpenVLA uses is computed, the patches of the
second-to-last block. The last block, the final norm and SigLIP's pooling head exist because the checkpoints hold them,
and take no gradient.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_policies.lora_backbone import linear_rows
from vla_policies.modules.quantization import Scheme, quantize_layers
from vla_policies.modules.training import CheckpointFn, checkpoint_fn
from vla_policies.openvla.config import NUM_BINS, OpenVLAConfig, TowerShape
from vla_policies.openvla.llama import build_llama

PATCH = 14
"""Side of a patch, pixels."""
LANGUAGE_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
"""The language model's layers alone, so that the image towers stay frozen."""
LORA_TARGETS = ("proj", "qkv", "fc1", "fc2", "q", "kv", "fc3", "out_proj", *LANGUAGE_TARGETS)
"""Layers with a LoRA adapter in RLinf's recipe: every linear one and the patch convolutions."""


class VisionTower(nn.Module):
    """A pre-norm vision transformer with exact GELU, up to its second-to-last block."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        grid = shape.image_size // PATCH
        self.patch_embed = PatchEmbed(shape.width)
        self.pos_embed = nn.Parameter(torch.zeros(1, grid * grid, shape.width))
        if shape.dino:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, shape.width))
            self.reg_token = nn.Parameter(torch.zeros(1, 4, shape.width))
        self.blocks = nn.ModuleList(TowerBlock(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width, eps=1e-6)
        self.attn_pool = None if shape.dino else AttentionPool(shape)
        self.num_prefix = 5 if shape.dino else 0

    def forward(self, pixels_BCHW: Tensor, run_block: CheckpointFn) -> Tensor:
        """Normalised pixels `[B, 3, H, W]` to patches `[B, P, width]`, row-major."""
        x = self.patch_embed(pixels_BCHW) + self.pos_embed
        if self.num_prefix:
            prefix = torch.cat([self.cls_token, self.reg_token], dim=1)
            x = torch.cat([prefix.expand(len(x), -1, -1), x], dim=1)
        for block in self.blocks[:-1]:
            x = run_block(block, x)
        return x[:, self.num_prefix :]

    def unused_parameters(self) -> list[nn.Parameter]:
        """Weights that no output depends on."""
        modules = (self.blocks[-1], self.norm, self.attn_pool)
        return [parameter for module in modules if module is not None for parameter in module.parameters()]


class PatchEmbed(nn.Module):
    """Patches to vectors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, PATCH, stride=PATCH)

    def forward(self, pixels_BCHW: Tensor) -> Tensor:
        """`[B, 3, H, W]` to `[B, P, width]`."""
        return self.proj(pixels_BCHW).flatten(2).transpose(1, 2)


class TowerBlock(nn.Module):
    """Attention and MLP, each with a residual (scaled in DINOv2)."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        scale = partial(LayerScale, shape.width) if shape.dino else nn.Identity
        self.norm1 = nn.LayerNorm(shape.width, eps=1e-6)
        self.attn = TowerAttention(shape)
        self.ls1 = scale()
        self.norm2 = nn.LayerNorm(shape.width, eps=1e-6)
        self.mlp = MLP(shape.width, shape.mlp, shape.width)
        self.ls2 = scale()

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_BLD = x_BLD + self.ls1(self.attn(self.norm1(x_BLD)))
        return x_BLD + self.ls2(self.mlp(self.norm2(x_BLD)))


class TowerAttention(nn.Module):
    """Multi-head self-attention without a mask."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.proj = nn.Linear(shape.width, shape.width)

    def forward(self, x_BLD: Tensor) -> Tensor:
        query, key, value = self.qkv(x_BLD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers, exact GELU between."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(functional.gelu(self.fc1(x)))


class LayerScale(nn.Module):
    """A factor per feature. The checkpoints call timm's `gamma` `scale_factor`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale_factor


class AttentionPool(nn.Module):
    """Holds the weights of SigLIP's pooling head, which OpenVLA's checkpoints carry and never use."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.latent = nn.Parameter(torch.zeros(1, 1, shape.width))
        self.q = nn.Linear(shape.width, shape.width)
        self.kv = nn.Linear(shape.width, 2 * shape.width)
        self.proj = nn.Linear(shape.width, shape.width)
        self.norm = nn.LayerNorm(shape.width, eps=1e-6)
        self.mlp = MLP(shape.width, shape.mlp, shape.width)


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
        self.language_model = build_llama(config.official["text_config"])
        self.projector = Projector(sum(tower.width for tower in towers), self.width, fused=len(towers) > 1)
        self.first_action_id = config.first_action_id
        self.recompute = bool(config.settings.recompute)
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
        return self.language_model.model.embed_tokens(ids_BL)

    def final_norm(self, x: Tensor) -> Tensor:
        """The language model's last norm."""
        return self.language_model.model.norm(x)

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
