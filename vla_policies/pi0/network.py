"""pi0's network: PaliGemma encodes images and text once; the action expert denoises given their keys and values.

Letters as in `modules.gemma`; W is the VLM's width, E the expert's, H predicted actions, M cameras.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import SiglipVisionConfig, SiglipVisionModel

from vla_policies.modules.activation_checkpointing import checkpoint_fn
from vla_policies.modules.feature_cache import Row
from vla_policies.modules.flow_head import FlowHead, hidden_layers
from vla_policies.modules.gemma import GemmaLayer, KeyValue, make_norm, rotary_embedding, suffix_mask
from vla_policies.modules.mixed_precision import in_float32
from vla_policies.pi0.config import NetworkShape

FIRST_VALUES_STD = 1e-3
"""Spread of the critic's first output weights; 0.02 is published. Smaller, so that first values are near 0."""


@dataclass(frozen=True)
class Prefix:
    """Images and text, encoded."""

    layers: tuple[KeyValue, ...]
    """Keys and values of every layer."""
    mask_BL: Tensor
    """True where a token is real."""
    hidden_BLW: Tensor | None
    """Hidden states after the last norm, arbitrary where padded; None unless requested."""


class VisionLanguageModel(nn.Module):
    """PaliGemma without its language head: SigLIP, a linear projector, Gemma with full attention."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape.vlm
        self.recompute = False
        vision = shape.vision
        self.vision_tower = SiglipVisionModel(
            SiglipVisionConfig(
                hidden_size=vision.hidden_size,
                intermediate_size=vision.intermediate_size,
                num_hidden_layers=vision.num_hidden_layers,
                num_attention_heads=vision.num_attention_heads,
                patch_size=vision.patch_size,
                image_size=vision.image_size,
                vision_use_head=False,
            )
        )
        self.projector = nn.Linear(vision.hidden_size, shape.vlm.width)
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.vlm.width)
        self.layers = nn.ModuleList(GemmaLayer(shape.vlm, adaptive=False) for _ in range(shape.vlm.depth))
        self.norm = make_norm(shape.vlm.width, adaptive=False)

    def image_tokens(self, pixels_BCHW: Tensor) -> Tensor:
        """Images in [-1, 1] to tokens `[B, patches, W]`, unscaled."""
        pixels_BCHW = pixels_BCHW.to(self.projector.weight.dtype)
        return self.projector(self.vision_tower(pixel_values=pixels_BCHW).last_hidden_state)

    def embed(
        self, pixels_BMCHW: Tensor, camera_mask_BM: Tensor | None, text_BL: Tensor, text_mask_BL: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tokens of all cameras, then of the text, `[B, L, W]`, and which are real, bool `[B, L]`.

        `camera_mask_BM` is False where a camera is absent; None means that all are there.
        """
        num_samples, num_cameras = pixels_BMCHW.shape[:2]
        images = self.image_tokens(pixels_BMCHW.flatten(0, 1)).unflatten(0, (num_samples, num_cameras))
        patches = images.shape[2]
        if camera_mask_BM is None:
            camera_mask_BM = text_mask_BL.new_ones(num_samples, num_cameras)
        words = self.embed_tokens(text_BL) * math.sqrt(self.shape.width)
        mask_BL = torch.cat([camera_mask_BM.repeat_interleave(patches, dim=1), text_mask_BL], dim=1)
        return torch.cat([images.flatten(1, 2), words], dim=1), mask_BL

    def forward(self, x_BLW: Tensor, mask_BL: Tensor, *, with_hidden: bool) -> Prefix:
        """Run embedded tokens through all layers; without `with_hidden` the last computes keys and values only."""
        position_BL = (mask_BL.long().cumsum(dim=1) - 1).clamp(min=0)
        rotary = rotary_embedding(position_BL, self.shape.head_dim, x_BLW.dtype)
        mask_B1QL = None if bool(mask_BL.all()) else mask_BL[:, None, None].expand(-1, 1, mask_BL.shape[1], -1)
        run = checkpoint_fn(recompute=self.recompute)
        kept = []
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, GemmaLayer)
            if index + 1 == len(self.layers) and not with_hidden:
                kept.append(layer.key_value(x_BLW, rotary))
                break
            x_BLW, own = run(layer, x_BLW, rotary, mask_B1QL)
            kept.append(own)
        return Prefix(tuple(kept), mask_BL, self.norm(x_BLW) if with_hidden else None)


class Pi0Network(FlowHead):
    """Velocity of noisy actions, given a prefix; pi0 and, with `adaptive`, pi0.5."""

    def __init__(self, shape: NetworkShape, *, adaptive: bool) -> None:
        periods = (shape.min_period, shape.max_period)
        super().__init__(shape.expert, shape.action_width, adaptive=adaptive, periods=periods)
        self.vlm = VisionLanguageModel(shape)
        self.state_proj = None if adaptive else nn.Linear(shape.state_width, shape.expert.width)

    def embed_suffix(self, x_BHD: Tensor, time_B: Tensor, state_BS: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The expert's input tokens `[B, Q, E]`, pi0's state first, and pi0.5's condition `[B, E]`."""
        action_BHE, condition_BE = self.embed_actions(x_BHD, time_B)
        if self.state_proj is None:
            return action_BHE, condition_BE
        assert state_BS is not None
        return torch.cat([self.state_proj(state_BS)[:, None], action_BHE], dim=1), condition_BE

    def hidden(self, prefix: Prefix, x_BHD: Tensor, time_B: Tensor, state_BS: Tensor | None) -> Tensor:
        """All tokens of the expert after the last norm, `[B, Q, E]`: for pi0 the first is the state's."""
        x_BQE, condition_BE = self.embed_suffix(x_BHD, time_B, state_BS)
        start_B1 = prefix.mask_BL.long().sum(dim=1, keepdim=True)
        position_BQ = start_B1 + torch.arange(x_BQE.shape[1], device=x_BQE.device)
        mask = suffix_mask(prefix.mask_BL, x_BHD.shape[1], state_token=self.state_proj is not None)
        hidden_BQE: Tensor = self.expert(x_BQE, prefix.layers, position_BQ, mask, condition_BE)
        return hidden_BQE


class Critic(nn.Module):
    """MLP with ReLU to one number; keys `mlp.{0,2,4,...}.*` as published with RLinf."""

    def __init__(self, width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        last = nn.Linear(hidden[-1], 1)
        self.mlp = nn.Sequential(*hidden_layers(width, hidden, nn.ReLU), last)
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        nn.init.normal_(last.weight, std=FIRST_VALUES_STD)

    def forward(self, x_BD: Tensor) -> Tensor:
        """Features of any float dtype to float32 `[B]`, under autocast too."""
        return in_float32(self.mlp, x_BD)[:, 0]


def split_prefix(prefix: Prefix) -> list[Row]:
    """Split B observations into rows: the real tokens' keys and values `[L, C, F]` of every layer in turn, and last
    their hidden states `[L, W]` where the prefix has them."""
    length_B = prefix.mask_BL.sum(dim=1).tolist()
    tensors = [x for layer in prefix.layers for x in (layer.key_BCLF, layer.value_BCLF)]
    return [
        (
            *(x[place, :, :length].transpose(0, 1) for x in tensors),
            *(() if prefix.hidden_BLW is None else (prefix.hidden_BLW[place, :length],)),
        )
        for place, length in enumerate(length_B)
    ]


def join_prefixes(rows: Sequence[Row]) -> Prefix:
    """Inverse of `split_prefix`; padding, at the end of the shorter ones, is zeros."""
    columns = [pad_sequence(list(column), batch_first=True) for column in zip(*rows, strict=True)]
    length_B = torch.tensor([len(row[0]) for row in rows], device=columns[0].device)
    hidden_BLW: Tensor | None = columns.pop() if len(columns) % 2 else None
    place_L = torch.arange(columns[0].shape[1], device=length_B.device)
    pairs = zip(columns[::2], columns[1::2], strict=True)
    layers = (KeyValue(key.transpose(1, 2), value.transpose(1, 2)) for key, value in pairs)
    return Prefix(tuple(layers), place_L < length_B[:, None], hidden_BLW)


def masked_mean(x_BLD: Tensor, mask_BL: Tensor) -> Tensor:
    """Mean over the real tokens, float32 `[B, D]`."""
    weight_BL1 = mask_BL[..., None].float()
    return (x_BLD.float() * weight_BL1).sum(dim=1) / weight_BL1.sum(dim=1)
