"""The optimiser's state as safetensors, whole whatever it is cut into, and the way back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vla_gym.errors import BadValue, shown
from zoo.distributed.fsdp import MASTER, has_low_precision_parameters, optimizer_parameters, whole, will_shard


def optimizer_tensors(policy: Any, *, keep: bool = True) -> dict[str, Tensor]:
    """The state of `policy.optimizer` as `<parameter>.<name>` -> tensor on the CPU; every rank must call it.

    With the float32 masters of a policy that acts in less. A rank that does not `keep` it gets nothing.
    """
    optimizer = policy.optimizer
    tensors: dict[str, Tensor] = {}

    def add(key: str, value: Tensor) -> None:
        value = whole(value.detach())
        if keep:
            tensors[key] = value.cpu().clone()

    if has_low_precision_parameters(policy):
        for index, parameter in enumerate(optimizer_parameters(optimizer)):
            add(f"{index}.{MASTER}", parameter.float())
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if not isinstance(value, Tensor):
                raise BadValue(
                    f"cannot checkpoint {type(optimizer).__name__}: its state '{name}' is a {type(value).__name__}, "
                    "not a tensor"
                )
            add(f"{index}.{name}", value)
    return tensors


def optimizer_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return its parameter groups as JSON values."""
    groups: list[dict[str, Any]] = optimizer.state_dict()["param_groups"]
    return groups


def load_optimizer(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    groups: Sequence[dict[str, Any]],
    where: Path,
) -> None:
    """Restore the state of `optimizer_tensors` and `optimizer_groups`; raises `BadValue` for another optimiser's.

    State that is yet to be cut over ranks stays on the CPU: whole, a GPU might not hold it.
    """
    present = optimizer.state_dict()["param_groups"]
    sizes, wanted = ([len(group["params"]) for group in each] for each in (groups, present))
    if sizes != wanted:
        raise BadValue(f"'{where}' is of parameter groups of {sizes} tensors, the optimiser here has {wanted}")
    _check_settings(groups, present, where)
    parameters = optimizer_parameters(optimizer)
    moments: dict[int, dict[str, Tensor]] = {}
    masters: dict[int, Tensor] = {}
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        shape = parameters[int(number)].shape
        if tensor.ndim and tensor.shape != shape:
            raise BadValue(f"'{where}' has '{key}' of shape {tuple(tensor.shape)}, its parameter has {tuple(shape)}")
        if name == MASTER:
            masters[int(number)] = tensor
        else:
            moments.setdefault(int(number), {})[name] = tensor
    # Not with the moments: torch would give them the device and precision of the weights.
    optimizer.load_state_dict({"state": {}, "param_groups": list(groups)})
    for index, values in moments.items():
        home = torch.device("cpu") if will_shard() else parameters[index].device
        optimizer.state[parameters[index]] = {name: _placed(moment, home) for name, moment in values.items()}
    for index, master in masters.items():
        parameter = parameters[index]
        if parameter.dtype.itemsize >= 4:
            parameter.data.copy_(master)
        else:
            # For `zoo.distributed.fsdp.shard` to take.
            optimizer.state[parameter][MASTER] = master


def _check_settings(groups: Sequence[dict[str, Any]], present: Sequence[dict[str, Any]], where: Path) -> None:
    """Raise `BadValue` for a setting of another kind than the present optimiser's, or a number that is not finite."""
    for group, own in zip(groups, present, strict=True):
        for name in group.keys() & own.keys():
            value, like = group[name], own[name]
            numbers = list(like) if isinstance(like, list | tuple) else [like]
            values = list(value) if isinstance(value, list | tuple) else [value]
            if len(values) != len(numbers) or not all(map(_alike, values, numbers)):
                raise BadValue(
                    f"'{where}' has {name} {shown(value)} in a parameter group, where there was {shown(like)}"
                )


def _alike(value: object, like: object) -> bool:
    if isinstance(like, int | float) and not isinstance(like, bool):
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, type(like))


def _placed(moment: Tensor, device: torch.device) -> Tensor:
    """A moment on `device`, in float32, which older files do not all have; a count of steps as it is."""
    if not moment.ndim:
        return moment
    return (moment if moment.dtype.itemsize >= 4 else moment.float()).to(device)
