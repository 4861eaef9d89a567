"""FSDP2: weights, gradients and optimiser state sharded over the ranks while learning, whole while acting.

Ranks act at their own pace (an episode ends early here and late there), so acting must not wait for another rank.
The policy that acts is therefore whole on every rank, in its own precision; a second one, sharded over W ranks by
`torch.distributed.fsdp.fully_shard`, learns, and its weights are copied after every update. Settings are those that
`accelerate launch` read from its configuration.
"""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import torch
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from vla_gym.errors import BadValue
from vla_policies.modules.quantization import quantized_layers
from vla_policies.modules.training import units
from zoo.distributed.process_group import lost_ranks

MASTER = "master"
"""Name in an optimiser's state of a weight in float32 that the policy acts on in less."""
_PRECISION = "ACCELERATE_MIXED_PRECISION"
REDUCE_DTYPE = "VLA_ZOO_REDUCE_DTYPE"
"""Environment variable: bf16 sums gradients in the precision that the weights have, half the bytes of float32."""


def fsdp_requested(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the launcher's configuration turns FSDP on."""
    return environment.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def sharding_settings(mixed_precision: str) -> dict[str, Any]:
    """Arguments of `fully_shard` from the launcher's configuration.

    Raises `BadValue` for FSDP's first version, and for its activation checkpointing, which is a policy's own here.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy  # seconds, which most runs do without

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
    # Old log-probabilities, advantages and the loss are not cast: 16 bits would move a ratio by per cents.
    configured = plugin.mixed_precision_policy or MixedPrecisionPolicy()
    precision = replace(configured, output_dtype=None, cast_forward_inputs=False)
    if precision.reduce_dtype is not None and os.environ.get(REDUCE_DTYPE, "fp32") != "bf16":
        precision = replace(precision, reduce_dtype=torch.float32)
    settings: dict[str, Any] = {"mp_policy": precision}
    if isinstance(plugin.cpu_offload, CPUOffloadPolicy):
        settings["offload_policy"] = plugin.cpu_offload
    return settings


def will_shard(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the policy that learns is cut over several ranks, by the launcher's configuration."""
    return fsdp_requested(environment) and int(environment.get("WORLD_SIZE", "1")) > 1


def num_replicas(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many groups of ranks share the weights, each all of them (HSDP), by the launcher's
    `parallelism_config`; raises `BadValue` for one that is not `dp_replicate_size` x `dp_shard_size` processes."""
    if environment.get("ACCELERATE_USE_PARALLELISM_CONFIG", "false").lower() != "true":
        return 1
    sizes = {
        name: int(environment.get(f"PARALLELISM_CONFIG_{name.upper()}", "1"))
        for name in ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")
    }
    replicas, shards, *others = sizes.values()
    if max(others) > 1 or replicas * shards != int(environment.get("WORLD_SIZE", "1")):
        raise BadValue(
            f"parallelism_config of accelerate gives {sizes}, of {environment.get('WORLD_SIZE', '1')} processes. "
            "Allowed: dp_replicate_size x dp_shard_size processes, all others 1"
        )
    return replicas


def launch_in_words(environment: Mapping[str, str] = os.environ) -> str:
    """Return the launcher's part of how a run learns: "8 processes, sharded (FSDP2), bf16"; "1 process" without one."""
    count = int(environment.get("WORLD_SIZE", "1"))
    kind = "" if num_replicas(environment) == 1 else f", {num_replicas(environment)} replicas"
    sharded = f"sharded (FSDP2{kind})" if will_shard(environment) else ""
    parts = [f"{count} process{'es' if count > 1 else ''}", sharded]
    precision = environment.get(_PRECISION, "no")
    return ", ".join(part for part in (*parts, "" if precision == "no" else precision) if part)


def has_low_precision_parameters(module: nn.Module) -> bool:
    """Whether trained weights have less than 32 bits."""
    return any(parameter.requires_grad and parameter.dtype.itemsize < 4 for parameter in module.parameters())


def check_learnable(policy: nn.Module) -> None:
    """Raise `BadValue` for a policy that could not learn as this command was launched.

    Steps would be lost: 16 bits keep of a weight w no step below about |w| / 512. Quantised weights cannot train, and
    need an adapter. Ranks that share a sharded policy encode together, and of kept features one may have what another
    has not.
    """
    backbone = getattr(policy, "backbone", policy)
    if will_shard() and getattr(backbone, "kept", None) is not None:
        raise BadValue(
            "kept features do not go with FSDP2, whose ranks must run the frozen part together: give policy_kwargs:"
            "{backbone_kwargs: {cache_features: 0}} (of nano: {freeze_encoder: false}), or learn by DDP: accelerate "
            "launch --config_file hyperparams/accelerate/one_node.yaml"
        )
    if quantized_layers(policy) and not policy.backbone.has_adapter:  # type: ignore[union-attr]
        raise BadValue(
            "quantised weights do not train; add an adapter: policy_kwargs:{backbone_kwargs: {lora: {rank: 32}}}, or "
            "leave quantization out"
        )
    # With a precision of the launcher's, every rank learns in float32, whatever the policy acts in.
    keeps_masters = will_shard() and os.environ.get(_PRECISION, "no") != "no"
    if has_low_precision_parameters(policy) and not keeps_masters:
        raise BadValue(
            "weights that are trained must be float32: steps of a usual learning rate vanish in 16 bits. Begin with "
            "policy_kwargs:{backbone_kwargs: {dtype: float32}}, or lora: {rank: 32} there, or let FSDP2 keep float32 "
            "masters, which a run that goes on may do too: accelerate launch --config_file "
            "hyperparams/accelerate/one_node_fsdp2.yaml"
        )


def learning_copy(policy: Any) -> Any:
    """Return a second policy on the memory of the first one's weights, which `shard` gives memory of its own.

    Its optimiser becomes the first one's too; the optimiser's state is moved, not copied.
    """
    state, policy.optimizer.state = policy.optimizer.state, defaultdict(dict)
    aliases = {
        id(parameter): nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
        for parameter in policy.parameters()
    }
    copied = deepcopy(policy, dict[int, Any](aliases))
    pairs = zip(optimizer_parameters(policy.optimizer), optimizer_parameters(copied.optimizer), strict=True)
    for before, after in pairs:
        if before in state:
            copied.optimizer.state[after] = state.pop(before)
    policy.optimizer = copied.optimizer
    return copied


def optimizer_parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the optimiser's parameters, in the order in which its state is numbered."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def shard(module: nn.Module, optimizer: torch.optim.Optimizer, mesh: DeviceMesh, **settings: Any) -> None:
    """Shard `module` over the ranks of `mesh`, unit by unit, and the state of its `optimizer` likewise.

    Of a unit weights are whole on each rank during its forward and backward pass, in the precision of `mp_policy`, and
    gradients until they are summed into parts. Trained weights are kept in float32.
    """
    from torch.distributed.fsdp import fully_shard

    names: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    state = {names[parameter]: dict(values) for parameter, values in optimizer.state.items()}
    optimizer.state.clear()
    groups = [[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
    for unit in units(module):
        for parameter in unit.parameters():
            if parameter not in names:
                continue  # a part of a block that is sharded already
            if settings["mp_policy"].param_dtype is not None and parameter.requires_grad:
                parameter.data = parameter.data.float()
        fully_shard(unit, mesh=mesh, **settings)
    # No family changes a block's output in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    sharded = dict(module.named_parameters())
    for group, members in zip(optimizer.param_groups, groups, strict=True):
        group["params"] = [sharded[name] for name in members]
    for name, values in state.items():
        optimizer.state[sharded[name]] = {key: shard_like(sharded[name], value) for key, value in values.items()}


def fits_whole(module: nn.Module, gathered: torch.dtype | None) -> bool:
    """Whether half of a GPU's free memory holds a sharded module's weights, `gathered` in that precision, and their
    float32 gradients whole: they may then stay so from one micro-batch to the next. Always on a CPU.

    Gathered and summed for every micro-batch, the weights of 7B parameters are 50 GB of traffic each time.
    """
    parameters = list(module.parameters())
    if parameters[0].device.type != "cuda" and not torch.cuda.is_available():
        return True
    size = sum(one.numel() * (gathered or one.dtype).itemsize for one in parameters)
    size += sum(4 * one.numel() for one in parameters if one.requires_grad)
    return size <= torch.cuda.mem_get_info()[0] / 2


def shard_like(parameter: Tensor, value: Tensor) -> Tensor:
    """Return this rank's shard of `value`, which every rank has whole, by the layout of `parameter` and where that is.

    Scalars stay whole.
    """
    if not isinstance(parameter, DTensor) or not value.dim():
        return value
    value = value.to(parameter.device_mesh.device_type)
    shard = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    return shard.to(parameter.device)


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor that may be sharded, gathered on the ranks' own devices. Every rank must call it.

    Raises `LostRank` where another rank has ended.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    # Parts that are kept in main memory travel between GPUs nevertheless.
    on_device = cast(DTensor, tensor.to(tensor.device_mesh.device_type))
    with lost_ranks():
        return on_device.full_tensor()


def own_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor that may be sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def sync_weights(learning: nn.Module, acting: nn.Module) -> None:
    """Copy the trained weights into the acting policy. Every rank must call it."""
    targets = dict(acting.named_parameters())
    for name, parameter in learning.named_parameters():
        if parameter.requires_grad:
            targets[name].copy_(whole(parameter))


@contextmanager
def offloaded_state(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Context manager that keeps the optimiser's state in main memory and drops gradients (`--offload-idle`).

    Adam keeps two numbers for every trained weight: more than the policy itself where all weights are trained.
    """
    optimizer.zero_grad(set_to_none=True)
    homes = []
    for values in optimizer.state.values():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.device.type != "cpu":
                homes.append((values, name, value.device))
                values[name] = value.cpu()
    if homes:
        torch.cuda.empty_cache()
    try:
        yield
    finally:
        for values, name, device in homes:
            values[name] = values[name].to(device)
