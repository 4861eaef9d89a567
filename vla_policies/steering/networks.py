"""Networks that judge: an observation as nano's encoder reads it, ensembles over chunks, distributions of returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_policies.conventions import Conventions
from vla_policies.nano.config import NanoConfig, config_from_options, fit_image_size
from vla_policies.nano.layers import QueryBlock, mlp
from vla_policies.nano.model import NanoEncoder, attend
from vla_policies.processing.observations import batch_observation, on_device

LARGEST_IMAGE = 96
"""Side of the images that a critic of another family's policy looks at, at most; nano's has the policy's own."""
RETURN_BINS = 201
"""Bins of a distribution of returns (arXiv:2511.14759, section IV)."""


@dataclass(frozen=True, kw_only=True)
class CriticConfig:
    """Settings of a critic, part of `steering.json`."""

    conventions: Conventions
    """Observations and actions of the policy, images of the critic's size."""
    encoder: NanoConfig
    members: int = 2
    """E, networks of the ensemble."""
    hidden: int = 256
    """Features of their two hidden layers."""


def critic_config(conventions: Conventions, backbone: Any, members: int) -> CriticConfig:
    """Return settings for a policy: nano's own encoder, or a small one of nano's for other families."""
    own = getattr(backbone, "config", None)
    own = getattr(own, "trunk", own)
    if isinstance(own, NanoConfig):
        return CriticConfig(conventions=conventions, encoder=replace(own, freeze_encoder=False), members=members)
    size = min(conventions.image_size, LARGEST_IMAGE)
    encoder = config_from_options({"size": "tiny"}, size)
    small = replace(conventions, image_size=fit_image_size(size, encoder.grid))
    return CriticConfig(conventions=small, encoder=encoder, members=members)


class ObservationNet(NanoEncoder):
    """An observation as one vector; begins with the weights of a nano policy's encoder where it is for one."""

    def __init__(self, config: CriticConfig) -> None:
        super().__init__()
        self.config = config
        self.conventions = config.conventions
        width, heads = config.encoder.width, config.encoder.heads
        self.build_encoders(config.conventions, config.encoder)
        self.build_blocks(config.encoder)
        self.query = nn.Parameter(0.02 * torch.randn(1, width))
        self.reader = QueryBlock(width, heads, config.encoder.mlp_ratio)
        self.norm = nn.LayerNorm(2 * width)

    def begin_as(self, backbone: nn.Module) -> None:
        """Copy the encoder's weights from a policy's network where it has tensors of their names and shapes."""
        own = self.state_dict()
        given = {name: x for name, x in backbone.state_dict().items() if name in own and x.shape == own[name].shape}
        self.load_state_dict({**own, **given})

    def encode(self, obs: Mapping[str, Any]) -> Tensor:
        """Observations (arrays or tensors) to `[B, 2 * width]`."""
        batch, _ = batch_observation(obs, self.conventions)
        encoding = self.encode_observation(self.prepare(on_device(batch, self.query.device)))
        read_BD = attend(self.query, encoding, [self.reader])[:, 0]
        return self.norm(torch.cat([read_BD, encoding.places_BD], dim=1))


class ChunkCritic(ObservationNet):
    """E estimates of the return after a whole chunk: MLPs with layer norm, as RLPD's (arXiv:2302.02948)."""

    def __init__(self, config: CriticConfig) -> None:
        super().__init__(config)
        wanted = config.conventions
        inputs = 2 * config.encoder.width + wanted.chunk * wanted.action_dim
        sizes = (inputs, config.hidden, config.hidden, 1)
        self.layers = nn.ModuleList(EnsembleLinear(config.members, *pair) for pair in pairwise(sizes))

    def judge(self, encoded_BD: Tensor, action_NBKA: Tensor) -> Tensor:
        """Estimates for N chunks of each of B encoded observations, float32 `[E, N, B]`."""
        num = len(action_NBKA)
        x = torch.cat([encoded_BD.expand(num, -1, -1), action_NBKA.flatten(2)], dim=2).flatten(0, 1)
        x = x.expand(self.config.members, -1, -1)
        for number, layer in enumerate(self.layers):
            if number:
                x = functional.gelu(functional.layer_norm(x, x.shape[-1:]), approximate="tanh")
            x = layer(x)
        return x[..., 0].unflatten(1, (num, -1))

    def forward(self, obs: Mapping[str, Any], action_BKA: Tensor) -> Tensor:
        """Estimates for one chunk of each observation, `[E, B]`."""
        return self.judge(self.encode(obs), action_BKA[None])[:, 0]

    def best(self, encoded_BD: Tensor, action_NBKA: Tensor) -> Tensor:
        """Return the chunk of the highest mean estimate for each observation, `[B, K, A]`."""
        chosen_B = self.judge(encoded_BD, action_NBKA).mean(dim=0).argmax(dim=0)
        return action_NBKA[chosen_B, torch.arange(len(chosen_B), device=chosen_B.device)]


class ReturnModel(ObservationNet):
    """A distribution over returns in [-1, 0], of which the mean is the value (arXiv:2511.14759, eq. 1)."""

    centre_R: Tensor

    def __init__(self, config: CriticConfig) -> None:
        super().__init__(config)
        self.head = mlp(2 * config.encoder.width, config.hidden, RETURN_BINS)
        self.register_buffer("centre_R", torch.linspace(-1.0, 0.0, RETURN_BINS), persistent=False)

    def value(self, obs: Mapping[str, Any]) -> Tensor:
        """Expected returns, float32 `[B]`."""
        return self.head(self.encode(obs)).float().softmax(dim=1) @ self.centre_R

    def forward(self, obs: Mapping[str, Any], return_B: Tensor) -> Tensor:
        """Return the mean cross entropy to the bins of the returns."""
        bin_B = ((return_B + 1.0) * (RETURN_BINS - 1)).round().long().clamp(0, RETURN_BINS - 1)
        return functional.cross_entropy(self.head(self.encode(obs)).float(), bin_B)


class EnsembleLinear(nn.Module):
    """E linear layers at once, `[E, B, inputs]` to `[E, B, outputs]`; initialised as torch's."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x_EBI: Tensor) -> Tensor:
        """Apply each member's layer to its own row of inputs."""
        return torch.baddbmm(self.bias, x_EBI, self.weight)
