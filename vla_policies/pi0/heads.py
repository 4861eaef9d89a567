"""What reinforcement learning adds to a flow policy: a critic, and the size of Flow-Noise's noise."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from vla_policies.actions.flow import bounded_std
from vla_policies.modules.mixed_precision import in_float32

FIRST_VALUES_STD = 1e-3
"""Spread of the critic's first output weights; 0.02 is published. Smaller, so that first values are near 0."""


class Critic(nn.Module):
    """MLP with ReLU to one number; keys `mlp.{0,2,4,...}.*` as published with RLinf."""

    def __init__(self, width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        last = nn.Linear(hidden[-1], 1)
        self.mlp = nn.Sequential(*_hidden_layers(width, hidden, nn.ReLU), last)
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        nn.init.normal_(last.weight, std=FIRST_VALUES_STD)

    def forward(self, x_BD: Tensor) -> Tensor:
        """Features of any float dtype to float32 `[B]`, under autocast too."""
        return in_float32(self.mlp, x_BD)[:, 0]


class NoiseHead(nn.Module):
    """Hidden states to standard deviations in a fixed range; the first ones lie in its (geometric) middle."""

    def __init__(
        self, width: int, hidden: Sequence[int], outputs: int, noise_std: tuple[float, float]
    ) -> None:
        super().__init__()
        self.noise_std = noise_std
        last = nn.Linear(hidden[-1], outputs)
        self.mlp = nn.Sequential(*_hidden_layers(width, hidden, nn.Tanh), last)
        nn.init.normal_(last.weight, std=1e-3)
        nn.init.zeros_(last.bias)

    def forward(self, hidden_BHE: Tensor) -> Tensor:
        """`[B, H, E]` of any float dtype to float32 `[B, H, D]`, under autocast too."""
        return bounded_std(in_float32(self.mlp, hidden_BHE), *self.noise_std)


def masked_mean(x_BLD: Tensor, mask_BL: Tensor) -> Tensor:
    """Mean over the real tokens, float32 `[B, D]`."""
    weight_BL1 = mask_BL[..., None].float()
    return (x_BLD.float() * weight_BL1).sum(dim=1) / weight_BL1.sum(dim=1)


def _hidden_layers(width: int, hidden: Sequence[int], activation: type[nn.Module]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise([width, *hidden]):
        layers += [nn.Linear(inputs, outputs), activation()]
    return layers
