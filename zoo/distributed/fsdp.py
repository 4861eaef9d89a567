"""FSDP2: weights, gradients and optimiser state cut over the ranks while learning, whole while acting.

Ranks act at their own pace (an episode ends early here and late there), so acting must not wait for anybody.
The policy that acts is therefore whole on every rank, in its own precision; a second one, cut into W parts by
`torch.distributed.fsdp.fully_shard`, learns, and hands its weights over after every update. Settings are those
that `accelerate launch` read from its configuration.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from vla_gym.errors import BadValue

MASTER = "master"
"""Name in an optimiser's state of a weight in float32 that the policy acts on in less."""
_PRECISION = "ACCELERATE_MIXED_PRECISION"


def sharding_asked(environment: Mapping[str, str] = os.environ) -> bool:
    """Does the launcher's configuration ask for FSDP?"""
    return environment.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def sharding_settings(mixed_precision: str) -> dict[str, Any]:
    """Arguments of `fully_shard` from the launcher's configuration.

    Raises `BadValue` for FSDP's first version, and for its activation checkpointing, which is a policy's own here.
    """
    plugin = FullyShardedDataParallelPlugin(cpu_ram_efficient_loading=False)
    if plugin.fsdp_version != 2:
        raise BadValue(
            f"FSDP version {plugin.fsdp_version} is not supported; set fsdp_version: 2 in accelerate's configuration"
        )
    if plugin.activation_checkpointing:
        raise BadValue(
            "fsdp_activation_checkpointing is not supported; set it for the policy: policy_kwargs backbone_kwargs "
            "recompute: true (pi0 and pi0.5: recompute_activations: true)"
        )
    if mixed_precision != "no":
        plugin.set_mixed_precision(mixed_precision)
    # Old log-probabilities, advantages and the loss go in and out as they are: 16 bits would move a ratio by per cents.
    asked = plugin.mixed_precision_policy or MixedPrecisionPolicy()
    precision = replace(asked, output_dtype=None, cast_forward_inputs=False)
    if precision.reduce_dtype is not None:
        precision = replace(precision, reduce_dtype=torch.float32)
    settings: dict[str, Any] = {"mp_policy": precision}
    if isinstance(plugin.cpu_offload, CPUOffloadPolicy):
        settings["offload_policy"] = plugin.cpu_offload
    return settings


def masters_asked(environment: Mapping[str, str] = os.environ) -> bool:
    """Does the launcher's configuration have every rank learn in float32, whatever precision the policy acts in?"""
    several = int(environment.get("WORLD_SIZE", "1")) > 1
    return sharding_asked(environment) and several and environment.get(_PRECISION, "no") != "no"


def trains_in_less(module: nn.Module) -> bool:
    """Has it trained weights of less than 32 bits?"""
    return any(one.requires_grad and one.dtype.itemsize < 4 for one in module.parameters())


def check_precision(policy: nn.Module) -> None:
    """Raise `BadValue` where steps would be lost: 16 bits keep of a weight w no step below about |w| / 512."""
    if trains_in_less(policy) and not masters_asked():
        raise BadValue(
            "weights that are trained must be float32: steps of a usual learning rate vanish in 16 bits. Begin with "
            "policy_kwargs:{backbone_kwargs: {dtype: float32}}, or lora: {rank: 32} there, or let FSDP2 keep float32 "
            "masters, which a run that goes on may do too: accelerate launch --config_file "
            "hyperparams/accelerate/one_node_fsdp2.yaml"
        )


def learning_copy(policy: Any) -> Any:
    """A second policy with an optimiser of its own, which from now on is the first one's too.

    What the optimiser knows goes over to the second one; there is never more than one of it.
    """
    known, policy.optimizer.state = policy.optimizer.state, defaultdict(dict)
    copied = deepcopy(policy)
    pairs = zip(parameters_of(policy.optimizer), parameters_of(copied.optimizer), strict=True)
    for before, after in pairs:
        if before in known:
            copied.optimizer.state[after] = known.pop(before)
    policy.optimizer = copied.optimizer
    return copied


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """In the order in which its state is numbered."""
    return [one for group in optimizer.param_groups for one in group["params"]]


def shard(module: nn.Module, optimizer: torch.optim.Optimizer, mesh: DeviceMesh, **settings: Any) -> None:
    """Cut `module` over the ranks of `mesh`, and what `optimizer` knows of its parameters likewise.

    As one unit: families run parts of their layers by hand, so no smaller module's `forward` is sure to be called.
    Weights are then whole on each rank during a forward and backward pass, in the precision of `mp_policy`; what is
    trained is kept in float32, from a checkpoint's masters where there are any.
    """
    names: dict[Tensor, str] = {one: name for name, one in module.named_parameters()}
    state = {names[one]: dict(values) for one, values in optimizer.state.items()}
    for one, name in names.items():
        master = state.get(name, {}).pop(MASTER, None)
        if settings["mp_policy"].param_dtype is not None and one.requires_grad:
            one.data = one.data.float() if master is None else master.to(one.device)
    members = [[names[one] for one in group["params"]] for group in optimizer.param_groups]
    fully_shard(module, mesh=mesh, **settings)
    parts = dict(module.named_parameters())
    for group, wanted in zip(optimizer.param_groups, members, strict=True):
        group["params"] = [parts[name] for name in wanted]
    optimizer.state.clear()
    for name, values in state.items():
        optimizer.state[parts[name]] = {key: cut_like(parts[name], one) for key, one in values.items()}


def mesh_of_all(device: torch.device, size: int) -> DeviceMesh:
    """All ranks in a row."""
    return init_device_mesh(device.type, (size,))


def cut_like(parameter: Tensor, value: Tensor) -> Tensor:
    """This rank's part of `value`, which every rank has whole, cut as `parameter` is; scalars stay whole."""
    if not isinstance(parameter, DTensor) or not value.dim():
        return value
    value = value.to(parameter.device_mesh.device_type)
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be cut over ranks; every rank must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def hand_over(learning: nn.Module, acting: nn.Module) -> None:
    """Give the acting policy the learning one's trained weights; every rank must ask."""
    targets = dict(acting.named_parameters())
    for name, one in learning.named_parameters():
        if one.requires_grad:
            targets[name].copy_(whole(one))
