"""The critic of flow policies: an MLP on one feature vector."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from vla_policies.modules.flow_head import hidden_layers
from vla_policies.modules.mixed_precision import in_float32

FIRST_VALUES_STD = 1e-3
"""Spread of the critic's first output weights; 0.02 is published. Smaller, so that first values are near 0."""


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
