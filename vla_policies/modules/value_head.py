"""The critic as published with RLinf: an MLP on the language model's hidden state, kept in float32."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from vla_policies.modules.mixed_precision import in_float32

HIDDEN = (512, 128)
FIRST_VALUES_STD = 1e-4
"""Spread of the last layer's first weights. RLinf publishes 0.02, which on a 4096-wide state gives first
values of order 1; this gives order 0.01, so that the first advantages are those of the rewards."""


class ValueHead(nn.Module):
    """Linear -> 512, GELU, -> 128, GELU, -> outputs (no bias); keys `mlp.{0,2,4}.*`.

    :param outputs: 1, or the chunk length for checkpoints with a value per action of the chunk.
    """

    def __init__(self, width: int, outputs: int = 1) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(width, HIDDEN[0]),
            nn.GELU(),
            nn.Linear(HIDDEN[0], HIDDEN[1]),
            nn.GELU(),
            nn.Linear(HIDDEN[1], outputs, bias=False),
        )

    def initialise(self) -> None:
        """Kaiming (fan out) but for the last layer, which starts near 0."""
        first, second, last = self._linears()
        for linear in (first, second):
            nn.init.kaiming_normal_(linear.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(linear.bias)
        nn.init.normal_(last.weight, std=FIRST_VALUES_STD)

    def forward(self, hidden_BD: Tensor) -> Tensor:
        """`[B, D]` of any float dtype to float32 `[B, outputs]`, under autocast too."""
        return in_float32(self.mlp, hidden_BD)

    def _linears(self) -> list[nn.Linear]:
        return [layer for layer in self.mlp if isinstance(layer, nn.Linear)]

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """As `nn.Module`, but without half precision: values need more than 8 bits."""
        before = [parameter.data for parameter in self.parameters()]
        super()._apply(fn, recurse)
        for parameter, data in zip(self.parameters(), before, strict=True):
            if parameter.dtype in (torch.bfloat16, torch.float16):
                parameter.data = data.to(parameter.device, torch.float32)
        return self
