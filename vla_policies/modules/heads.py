"""Heads: the velocity of noisy actions at a time, Flow-Noise's standard deviations, and the critics."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_policies.actions.flow import bounded_std, time_embedding
from vla_policies.modules.streams import ActionExpert, GemmaShape
from vla_policies.modules.training import in_float32

CRITIC_STD = 1e-3
"""Spread of the first output weights of flow policies' critic; 0.02 is published. Smaller, so that first values are
near 0."""
VALUE_HIDDEN = (512, 128)
VALUE_STD = 1e-4
"""Spread of the last layer's first weights of OpenVLA's critic. RLinf publishes 0.02, which on a 4096-wide state gives
first values of order 1; this gives order 0.01, so that the first advantages are those of the rewards."""


class ActionProjections(nn.Module):
    """Noisy actions and their time to an expert's tokens, and the expert's tokens to a velocity."""

    def add_projections(
        self, width: int, action_width: int, *, adaptive: bool, periods: tuple[float, float] = (4e-3, 4.0)
    ) -> None:
        """Create the layers; time conditions the expert's norms where `adaptive` (pi0.5), else is an MLP's input."""
        self.adaptive = adaptive
        self.periods = periods
        self.width = width
        self.action_in_proj = nn.Linear(action_width, width)
        self.action_out_proj = nn.Linear(width, action_width)
        if adaptive:
            self.time_mlp_in = nn.Linear(width, width)
            self.time_mlp_out = nn.Linear(width, width)
        else:
            self.action_time_mlp_in = nn.Linear(2 * width, width)
            self.action_time_mlp_out = nn.Linear(width, width)

    def embed_actions(self, x_BHD: Tensor, time_B: Tensor) -> tuple[Tensor, Tensor | None]:
        """Tokens `[B, H, E]` of noisy actions and, for pi0.5, the condition `[B, E]` of the expert's norms."""
        action_BHE = self.action_in_proj(x_BHD)
        time_BE = time_embedding(time_B, self.width, *self.periods).to(action_BHE.dtype)
        if self.adaptive:
            return action_BHE, functional.silu(self.time_mlp_out(functional.silu(self.time_mlp_in(time_BE))))
        both = torch.cat([action_BHE, time_BE[:, None].expand_as(action_BHE)], dim=2)
        return self.action_time_mlp_out(functional.silu(self.action_time_mlp_in(both))), None

    def velocity(self, hidden_BQE: Tensor, horizon: int) -> Tensor:
        """The velocity `[B, H, D]` of the last `horizon` tokens."""
        return self.action_out_proj(hidden_BQE[:, -horizon:])


class FlowHead(ActionProjections):
    """Action expert of Gemma layers with its projections."""

    def __init__(
        self,
        shape: GemmaShape,
        action_width: int,
        *,
        adaptive: bool,
        periods: tuple[float, float] = (4e-3, 4.0),
    ) -> None:
        super().__init__()
        self.expert = ActionExpert(shape, adaptive=adaptive)
        self.add_projections(shape.width, action_width, adaptive=adaptive, periods=periods)


class NoiseHead(nn.Module):
    """Hidden states to standard deviations in a fixed range, whose geometric middle is the first output."""

    def __init__(self, width: int, hidden: Sequence[int], outputs: int, noise_std: tuple[float, float]) -> None:
        super().__init__()
        self.noise_std = noise_std
        last = nn.Linear(hidden[-1], outputs)
        self.mlp = nn.Sequential(*hidden_layers(width, hidden, nn.Tanh), last)
        nn.init.normal_(last.weight, std=1e-3)
        nn.init.zeros_(last.bias)

    def forward(self, hidden_BHE: Tensor) -> Tensor:
        """`[B, H, E]` of any float dtype to float32 `[B, H, D]`, under autocast too."""
        return bounded_std(in_float32(self.mlp, hidden_BHE), *self.noise_std)


def hidden_layers(width: int, hidden: Sequence[int], activation: type[nn.Module]) -> list[nn.Module]:
    """Linear layers of the widths `hidden`, each followed by `activation`."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise([width, *hidden]):
        layers += [nn.Linear(inputs, outputs), activation()]
    return layers


class Critic(nn.Module):
    """Critic of flow policies: MLP with ReLU to one number; keys `mlp.{0,2,4,...}.*` as published with RLinf."""

    def __init__(self, width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        last = nn.Linear(hidden[-1], 1)
        self.mlp = nn.Sequential(*hidden_layers(width, hidden, nn.ReLU), last)
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        nn.init.normal_(last.weight, std=CRITIC_STD)

    def forward(self, x_BD: Tensor) -> Tensor:
        """Features of any float dtype to float32 `[B]`, under autocast too."""
        return in_float32(self.mlp, x_BD)[:, 0]


class ValueHead(nn.Module):
    """OpenVLA's critic as published with RLinf, on the language model's hidden state, kept in float32.

    Linear -> 512, GELU, -> 128, GELU, -> outputs (no bias); keys `mlp.{0,2,4}.*`.

    :param outputs: 1, or the chunk length for checkpoints with a value per action of the chunk.
    """

    def __init__(self, width: int, outputs: int = 1) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(width, VALUE_HIDDEN[0]),
            nn.GELU(),
            nn.Linear(VALUE_HIDDEN[0], VALUE_HIDDEN[1]),
            nn.GELU(),
            nn.Linear(VALUE_HIDDEN[1], outputs, bias=False),
        )

    def initialise(self) -> None:
        """Kaiming (fan out) but for the last layer, which starts near 0."""
        *hidden, last = (layer for layer in self.mlp if isinstance(layer, nn.Linear))
        for linear in hidden:
            nn.init.kaiming_normal_(linear.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(linear.bias)
        nn.init.normal_(last.weight, std=VALUE_STD)

    def forward(self, hidden_BD: Tensor) -> Tensor:
        """`[B, D]` of any float dtype to float32 `[B, outputs]`, under autocast too."""
        return in_float32(self.mlp, hidden_BD)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        # Without half precision: values need more than 8 bits.
        before = [parameter.data for parameter in self.parameters()]
        super()._apply(fn, recurse)
        for parameter, data in zip(self.parameters(), before, strict=True):
            if parameter.dtype in (torch.bfloat16, torch.float16):
                parameter.data = data.to(parameter.device, torch.float32)
        return self
