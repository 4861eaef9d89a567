"""The nano network: blocks mix picture, sentence and state; K action queries and a value query read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from vla_policies.actions.codec import UniformBins
from vla_policies.backbone import BackboneOutput, TokenBackbone
from vla_policies.checkpoint_io.json_records import from_json, to_json
from vla_policies.conventions import Conventions
from vla_policies.nano.config import NanoConfig, config_from_options, fit_image_size
from vla_policies.nano.layers import ActionHead, Reader, ValueHead
from vla_policies.nano.processor import prepare_inputs
from vla_policies.nano.trunk import NanoTrunk, Reading
from vla_policies.types import PolicyInputs


class NanoBackbone(NanoTrunk, TokenBackbone):
    """A small VLA: 256 bins per action dim, the whole chunk decoded in one pass."""

    family: ClassVar[str] = "nano"
    default_conventions: ClassVar[Conventions] = Conventions(
        cameras=("image",), image_size=128, state_dim=8, chunk=8, action_dim=7
    )

    def __init__(self, conventions: Conventions, config: NanoConfig) -> None:
        codec = UniformBins()
        super().__init__(conventions, codec)
        self.config = config
        width = config.width
        self.build_senses(conventions, config)
        self.action_queries = nn.Parameter(0.02 * torch.randn(conventions.chunk, width))
        self.build_blocks(config)
        shape = (width, config.heads, config.mlp_ratio)
        self.readers = nn.ModuleList(Reader(*shape) for _ in range(config.readers))
        self.action_head = ActionHead(
            width,
            conventions.action_dim,
            codec,
            features=config.bin_features,
            smoothness=config.bin_smoothness,
            initial_std=config.initial_std,
        )
        self.value_reader = Reader(*shape) if config.critic == "own" else None
        self.value_head = ValueHead(width)

    @classmethod
    def fresh(cls, conventions: Conventions, options: Mapping[str, Any]) -> Self:
        config = config_from_options(options, conventions.image_size)
        return cls(
            replace(conventions, image_size=fit_image_size(conventions.image_size, config.grid)), config
        )

    @classmethod
    def from_config(cls, conventions: Conventions, config: Mapping[str, Any], where: str) -> Self:
        return cls(conventions, from_json(NanoConfig, config, where))

    def config_json(self) -> dict[str, Any]:
        return to_json(self.config)

    def value_parameters(self) -> Iterator[nn.Parameter]:
        if self.value_reader is not None:
            yield from self.value_reader.parameters()
        yield from self.value_head.parameters()

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        # Action queries attend to a shared critic's query.
        shared = self.value_reader is None
        return (one for one in self.value_parameters() if not (shared and one is self.value_head.query))

    def prepare(self, obs: Mapping[str, Tensor]) -> PolicyInputs:
        return prepare_inputs(obs, self.conventions)

    def forward(self, inputs: PolicyInputs) -> BackboneOutput:
        reading = self.read_observation(inputs)
        if self.value_reader is not None:
            hidden_BKD = _ask(self.action_queries, reading, self.readers)
            value_BQD = _ask(self.value_head.query, reading.detached(), [self.value_reader])
            return BackboneOutput(self.action_head(hidden_BKD), self.value_head(value_BQD[:, 0]))
        x_BQD = _ask(torch.cat([self.action_queries, self.value_head.query]), reading, self.readers)
        return BackboneOutput(self.action_head(x_BQD[:, :-1]), self.value_head(x_BQD[:, -1]))


def _ask(queries_QD: Tensor, reading: Reading, readers: Iterable[nn.Module]) -> Tensor:
    """What queries have read of an observation, `[B, Q, width]`."""
    mask_B11L = reading.mask(before=len(queries_QD))
    x_BQD = queries_QD + reading.places_BD[:, None]
    for reader in readers:
        x_BQD = reader(x_BQD, reading.context_BLD, mask_B11L)
    return x_BQD
