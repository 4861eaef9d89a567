"""The optimiser: one AdamW, one learning-rate schedule, a factor per parameter group."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.optim import AdamW


class GroupScaledAdamW(AdamW):
    """AdamW whose groups may carry `lr_scale`: the group steps with `lr * lr_scale`.

    Stable-Baselines3 writes one schedule value into every group's `lr` before each update, which would
    overwrite a value head's own rate; with the factor that rate follows the schedule.
    """

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One AdamW step; each group's `lr` reads the same before and after."""
        rates = [group["lr"] for group in self.param_groups]
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate * group.get("lr_scale", 1.0)
        try:
            return super().step(closure)
        finally:
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate


def parameter_groups(
    model: nn.Module, value_parameters: Iterable[nn.Parameter], value_lr_scale: float
) -> list[dict[str, Any]]:
    """Two groups of trainable parameters: "backbone", and "value_head" at `value_lr_scale` times the rate."""
    value_ids = {id(parameter) for parameter in value_parameters}
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"name": "backbone", "params": [p for p in trainable if id(p) not in value_ids], "lr_scale": 1.0},
        {
            "name": "value_head",
            "params": [p for p in trainable if id(p) in value_ids],
            "lr_scale": value_lr_scale,
        },
    ]
    return [group for group in groups if group["params"]]
