"""Whether the processes of a run were all asked for the same: each is started by a command of its own.

Gradients are averaged over ranks whatever their settings, so a flag that one machine lacks, another version of the
code or another copy of a checkpoint changes what is learned and shows nowhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from vla_gym import __version__
from vla_gym.errors import BadValue, shown
from zoo.config.run_config import RunConfig, to_plain
from zoo.distributed.process_group import ProcessGroup

_OWN = ("seed", "device", "num_threads", "env_options.num_workers")
"""Settings that each machine may have its own of; the seed is rank 0's for all."""
_SAMPLE = 64
"""Numbers of each weight that are compared."""


def check_same_command(config: RunConfig, step: int | None, process_group: ProcessGroup) -> None:
    """Raise `BadValue` where ranks differ in version, in settings or in the `step` they go on from.

    Every rank must call it.
    """
    settings = {name: value for name, value in _flat(to_plain(config)) if name not in _OWN}
    check_same({"version of vla-zoo": __version__, "checkpoint": step, **settings}, process_group)


def check_same_weights(policy: nn.Module | None, process_group: ProcessGroup) -> None:
    """Raise `BadValue` where ranks have read other frozen weights; None: this rank has no policy.

    Trained ones follow from the seed, or are sent by the rank that learns. Every rank must call it.
    """
    digests = process_group.all_gather_object(None if policy is None else frozen_sample(policy))
    if len({digest for digest in digests if digest is not None}) > 1:
        raise BadValue(
            "the frozen weights of the policy are not the same on all ranks: give all machines the same files, or a "
            "revision of the Hub's"
        )


def check_same(facts: Mapping[str, Any], process_group: ProcessGroup) -> None:
    """Raise `BadValue` unless every rank has the same facts, JSON values. Every rank must call it."""
    first, *others = process_group.all_gather_object(dict(facts))
    for rank, other in enumerate(others, start=1):
        for name in sorted({*first, *other}):
            if other.get(name) != first.get(name):
                raise BadValue(
                    f"{name} is {shown(other.get(name))} on rank {rank}, {shown(first.get(name))} on rank 0: start all "
                    "processes with the same command, version and files"
                )


def frozen_sample(module: nn.Module) -> str:
    """SHA-256 over some numbers of every frozen weight, in bfloat16: a device may keep them in more bits."""
    digest = hashlib.sha256()
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            numbers = parameter.detach().flatten()
            some = numbers[:: max(1, len(numbers) // _SAMPLE)].to("cpu", torch.bfloat16).contiguous()
            digest.update(name.encode())
            digest.update(some.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a configuration, those of its mappings as `algo_kwargs.learning_rate`."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            yield name, value
