"""Reward of a simulator step: the benchmark's sparse one, or one of two published variations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from vla_gym.errors import BadValue, shown, unknown_name

RewardKind = Literal["sparse", "differenced", "step_penalty"]


@dataclass(frozen=True, kw_only=True)
class RewardRule:
    """Turns the benchmark's reward `r_t` of a step into the agent's; `c` is `scale`."""

    kind: RewardKind = "sparse"
    """`sparse`: `c r_t`. `differenced`: `c (r_t - r_{t-1})`, so that staying solved pays once.
    `step_penalty`: `c r_t - 1`."""
    scale: float = 1.0
    """`c`."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(RewardKind):
            raise unknown_name("reward", self.kind, get_args(RewardKind))
        if not 0.0 < self.scale < float("inf"):
            raise BadValue(f"reward_scale must be a positive number, got {shown(self.scale)}")

    def pay(self, reward: float, previous: float) -> float:
        """Reward of one step, given the benchmark's own of this step and of the step before (0 at first)."""
        if self.kind == "differenced":
            return self.scale * (reward - previous)
        if self.kind == "step_penalty":
            return self.scale * reward - 1.0
        return self.scale * reward
