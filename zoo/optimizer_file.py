"""The optimiser's state as safetensors, whole whatever it is cut into, and the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vla_gym.errors import BadValue
from zoo.sharding import cut_like, whole


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Its state as `<parameter>.<name>` -> tensor on the CPU; every rank must ask."""
    tensors: dict[str, Tensor] = {}
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if not isinstance(value, Tensor):
                raise BadValue(
                    f"cannot checkpoint {type(optimizer).__name__}: its state '{name}' is a {type(value).__name__}, "
                    "not a tensor"
                )
            tensors[f"{index}.{name}"] = whole(value.detach()).cpu().clone()
    return tensors


def optimizer_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Its parameter groups as JSON values."""
    groups: list[dict[str, Any]] = optimizer.state_dict()["param_groups"]
    return groups


def load_optimizer(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    groups: Sequence[dict[str, Any]],
    where: Path,
) -> None:
    """Put back what `optimizer_tensors` and `optimizer_groups` gave; raises `BadValue` where it is another's."""
    present = optimizer.state_dict()["param_groups"]
    sizes, wanted = [len(one["params"]) for one in groups], [len(one["params"]) for one in present]
    if sizes != wanted:
        raise BadValue(
            f"'{where}' is of parameter groups of {sizes} tensors, the optimiser here has {wanted}"
        )
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    by_parameter: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        by_parameter.setdefault(int(index), {})[name] = cut_like(parameters[int(index)], tensor)
    optimizer.load_state_dict({"state": by_parameter, "param_groups": list(groups)})
