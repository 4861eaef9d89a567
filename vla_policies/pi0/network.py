"""pi0's network: PaliGemma encodes images and text once; the action expert denoises given their keys and values.

Letters as in `modules.streams`; W is the VLM's width, E the expert's, H predicted actions, M cameras.
"""

from __future__ import annotations

import math
from dataclasses import asdict

import torch
from torch import Tensor, nn
from transformers import SiglipVisionConfig, SiglipVisionModel

from vla_policies.modules.heads import FlowHead
from vla_policies.modules.streams import GemmaLayer, Prefix, make_norm, run_prefix, suffix_mask
from vla_policies.pi0.config import NetworkShape


class VisionLanguageModel(nn.Module):
    """PaliGemma without its language head: SigLIP, a linear projector, Gemma with full attention."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape.vlm
        self.recompute = False
        self.vision_tower = SiglipVisionModel(SiglipVisionConfig(**asdict(shape.vision), vision_use_head=False))
        self.projector = nn.Linear(shape.vision.hidden_size, shape.vlm.width)
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
        return run_prefix(
            self.layers,
            self.norm,
            x_BLW,
            mask_BL,
            head_dim=self.shape.head_dim,
            recompute=self.recompute,
            with_hidden=with_hidden,
        )


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
