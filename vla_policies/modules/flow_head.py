"""The flow head of pi0 and pi0.5: noisy actions and time in, velocity out, on top of a prefix read by others."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_policies.actions.flow import time_embedding
from vla_policies.modules.gemma import ActionExpert
from vla_policies.pi0.config import GemmaShape


class FlowHead(nn.Module):
    """Action expert with its projections; `adaptive` lets time in through the norms (pi0.5), else through an MLP."""

    def __init__(
        self,
        shape: GemmaShape,
        action_width: int,
        *,
        adaptive: bool,
        periods: tuple[float, float] = (4e-3, 4.0),
    ) -> None:
        super().__init__()
        self.adaptive = adaptive
        self.periods = periods
        self.width = shape.width
        self.expert = ActionExpert(shape, adaptive=adaptive)
        self.action_in_proj = nn.Linear(action_width, shape.width)
        self.action_out_proj = nn.Linear(shape.width, action_width)
        if adaptive:
            self.time_mlp_in = nn.Linear(shape.width, shape.width)
            self.time_mlp_out = nn.Linear(shape.width, shape.width)
        else:
            self.action_time_mlp_in = nn.Linear(2 * shape.width, shape.width)
            self.action_time_mlp_out = nn.Linear(shape.width, shape.width)

    def embed_actions(self, x_BHD: Tensor, time_B: Tensor) -> tuple[Tensor, Tensor | None]:
        """Tokens `[B, H, E]` of noisy actions and, for pi0.5, the condition `[B, E]` of the expert's norms."""
        action_BHE = self.action_in_proj(x_BHD)
        time_BE = time_embedding(time_B, self.width, *self.periods).to(action_BHE.dtype)
        if self.adaptive:
            return action_BHE, functional.silu(self.time_mlp_out(functional.silu(self.time_mlp_in(time_BE))))
        both = torch.cat([action_BHE, time_BE[:, None].expand_as(action_BHE)], dim=2)
        return self.action_time_mlp_out(functional.silu(self.action_time_mlp_in(both))), None

    def velocity(self, hidden_BQE: Tensor, horizon: int) -> Tensor:
        """The velocity `[B, H, D]` that the last `horizon` tokens stand for."""
        velocity_BHD: Tensor = self.action_out_proj(hidden_BQE[:, -horizon:])
        return velocity_BHD
