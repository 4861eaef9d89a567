"""The two image towers, with the key names of the checkpoints (timm's, but `scale_factor` for LayerScale).

By hand, not timm: the checkpoints' names differ, and only what OpenVLA uses is computed, the patches of the
second-to-last block. The last block, the final norm and SigLIP's pooling head exist
because the checkpoints hold them, and take no gradient.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_policies.modules.training import CheckpointFn
from vla_policies.openvla.config import TowerShape

PATCH = 14
"""Side of a patch, pixels."""


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
        if not shape.dino:
            self.attn_pool = AttentionPool(shape)
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
        modules = [self.blocks[-1], self.norm] + ([self.attn_pool] if hasattr(self, "attn_pool") else [])
        return [parameter for module in modules for parameter in module.parameters()]


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
        self.mlp = TowerMLP(shape.width, shape.mlp)
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


class TowerMLP(nn.Module):
    """Two linear layers, exact GELU between."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

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
        self.mlp = TowerMLP(shape.width, shape.mlp)
