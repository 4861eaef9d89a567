"""`nano-flow`: nano's trunk with pi0's flow head, small enough to train on a CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from vla_policies.actions.flow import FlowSettings, gaussian_velocity
from vla_policies.checkpoint_io.json_records import from_json
from vla_policies.conventions import Conventions
from vla_policies.flow_backbone import Denoised, FlowBackbone
from vla_policies.modules.heads import FlowHead, NoiseHead
from vla_policies.modules.streams import GemmaShape, KeyValue
from vla_policies.nano.config import NanoConfig, config_from_options, fit_image_size
from vla_policies.nano.layers import QueryBlock, ValueHead
from vla_policies.nano.model import Encoding, NanoTrunk
from vla_policies.types import PolicyInputs


@dataclass(frozen=True, kw_only=True)
class NanoFlowConfig:
    """Config of a nano-flow model, part of a checkpoint's `config.json`."""

    trunk: NanoConfig
    """Encoders and blocks; `readers` is the number of the expert's layers, `initial_std` the spread of the
    first actions, the fields about bins are not used."""
    flow: FlowSettings


@dataclass(frozen=True)
class NanoContext:
    """The encoded observation of a decision."""

    encoding: Encoding
    layers: tuple[KeyValue, ...]
    """Keys and values for every layer of the expert."""
    mask_B11L: Tensor | None
    """Mask of the context and the K actions; None when nothing is padding."""


class NanoFlowBackbone(NanoTrunk, FlowBackbone):
    """A small flow policy: the horizon is the chunk, and no dimension is padding."""

    family: ClassVar[str] = "nano-flow"

    def __init__(self, conventions: Conventions, config: NanoFlowConfig) -> None:
        super().__init__(conventions, config.flow, horizon=conventions.chunk, flow_width=conventions.action_dim)
        trunk = config.trunk
        self.config = config
        self.build_encoders(conventions, trunk)
        self.build_blocks(trunk)
        shape = GemmaShape(
            width=trunk.width,
            mlp_dim=trunk.mlp_ratio * trunk.width,
            depth=trunk.readers,
            num_heads=trunk.heads,
            num_kv_heads=trunk.heads,
            head_dim=trunk.width // trunk.heads,
        )
        self.head = FlowHead(shape, conventions.action_dim, adaptive=False)
        nn.init.normal_(self.head.action_out_proj.weight, std=0.01 / trunk.width**0.5)
        nn.init.zeros_(self.head.action_out_proj.bias)
        self.context_norm = nn.LayerNorm(trunk.width)
        self.key_values = nn.ModuleList(nn.Linear(trunk.width, 2 * trunk.width) for _ in range(trunk.readers))
        self.value_reader = QueryBlock(trunk.width, trunk.heads, trunk.mlp_ratio)
        self.value_head = ValueHead(trunk.width)
        self.noise_head = (
            NoiseHead(trunk.width, (64,), conventions.action_dim, config.flow.noise_std)
            if config.flow.scheme == "flow_noise"
            else None
        )

    # Building -----------------------------------------------------------------------------------------

    @classmethod
    def fresh(cls, conventions: Conventions, options: Mapping[str, Any]) -> Self:
        """`size` and single fields as for nano, and any setting of `FlowSettings` by name."""
        if "trunk" in options:
            return cls.from_config(conventions, options, f"backbone_kwargs of {cls.family}")
        flow_names = {item.name for item in fields(FlowSettings)}
        flow = {key: value for key, value in options.items() if key in flow_names}
        rest = {key: value for key, value in options.items() if key not in flow_names}
        trunk = config_from_options(rest, conventions.image_size)
        fitted = replace(conventions, image_size=fit_image_size(conventions.image_size, trunk.grid))
        where = f"backbone_kwargs of {cls.family}"
        return cls(fitted, NanoFlowConfig(trunk=trunk, flow=from_json(FlowSettings, flow, where)))

    @classmethod
    def from_config(cls, conventions: Conventions, config: Mapping[str, Any], where: str) -> Self:
        return cls(conventions, from_json(NanoFlowConfig, config, where))

    def value_parameters(self) -> Iterator[nn.Parameter]:
        yield from self.value_reader.parameters()
        yield from self.value_head.parameters()

    # Deciding -----------------------------------------------------------------------------------------

    def encode(self, inputs: PolicyInputs) -> NanoContext:
        encoding = self.encode_observation(inputs)
        normed_BLD = self.context_norm(encoding.context_BLD)
        layers = []
        for project in self.key_values:
            key, value = (
                part.unflatten(-1, (self.config.trunk.heads, -1)).transpose(1, 2)
                for part in project(normed_BLD).chunk(2, dim=-1)
            )
            layers.append(KeyValue(key, value))
        mask_B11L = encoding.mask(before=0)
        if mask_B11L is not None:  # of the expert's keys: the context, then its own tokens
            own = mask_B11L.new_ones(len(mask_B11L), 1, 1, self.horizon)
            mask_B11L = torch.cat([mask_B11L, own], dim=-1).expand(-1, 1, self.horizon, -1)
        return NanoContext(encoding, tuple(layers), mask_B11L)

    def denoise(self, context: NanoContext, x_BHD: Tensor, time_B: Tensor) -> Denoised:
        tokens_BHE, _ = self.head.embed_actions(x_BHD, time_B)
        tokens_BHE = tokens_BHE + context.encoding.places_BD[:, None]
        position_BH = torch.arange(self.horizon, device=x_BHD.device).expand(len(x_BHD), -1)
        hidden_BHE = self.head.expert(tokens_BHE, context.layers, position_BH, context.mask_B11L)
        velocity_BHD = self.head.velocity(hidden_BHE, self.horizon).float()
        start_BHD = gaussian_velocity(x_BHD, time_B, self.config.trunk.initial_std)
        return Denoised(start_BHD + velocity_BHD, hidden_BHE.float())

    def value_of(self, context: NanoContext) -> Tensor:
        query_BQD = self.value_head.query + context.encoding.places_BD[:, None]
        value_BQD = self.value_reader(query_BQD, context.encoding.context_BLD, context.encoding.mask(before=1))
        return self.value_head(value_BQD[:, 0]).float()

    def to_env(self, x_BHD: Tensor, inputs: PolicyInputs) -> Tensor:
        return x_BHD.clamp(-1.0, 1.0)

    def from_env(self, action_BKA: Tensor, inputs: PolicyInputs) -> Tensor:
        return action_BKA
