"""Weights on their way from the rank that trains to ranks that decide: what changed, under a version, proven by a hash.

Only parameters that are trained travel (the adapter and the value head under LoRA), and of those only the ones whose
numbers changed since they were last sent. Every rank has read the others from the same place.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vla_gym.errors import BadValue


@dataclass(frozen=True)
class WeightUpdate:
    """What makes weights of one version out of those of the version before."""

    version: int
    """Updates that the weights have gone through."""
    tensors: Mapping[str, Tensor]
    """Parameter name -> its new numbers, on the CPU."""
    digest: str | None
    """`weights_hash` of all trained parameters, these included; None where it is not checked."""

    @property
    def size(self) -> int:
        """Bytes of the tensors."""
        return sum(one.numel() * one.element_size() for one in self.tensors.values())


def trained(module: nn.Module) -> dict[str, Tensor]:
    """The parameters that training moves, detached, by name."""
    return {name: one.detach() for name, one in module.named_parameters() if one.requires_grad}


def weights_hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes; equal exactly when all of them are."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        one = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {one.dtype} {tuple(one.shape)};".encode())
        found.update(one.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def debug_sync() -> bool:
    """Whether `VLA_ZOO_DEBUG_SYNC` asks for every version of the weights to be proven by a hash."""
    return bool(os.environ.get("VLA_ZOO_DEBUG_SYNC"))


class WeightSender:
    """Remembers what it sent last, so that it sends what changed."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._sent: dict[str, Tensor] = {}

    def update(self, version: int) -> WeightUpdate:
        """The step to the module's present weights; everything that is trained the first time."""
        first = not self._sent
        present = {name: one.cpu() for name, one in trained(self._module).items()}
        changed = {
            name: one.clone()
            for name, one in present.items()
            if name not in self._sent or not torch.equal(one, self._sent[name])
        }
        self._sent.update(changed)
        # Ranks that read different checkpoints show at the first version; a hash is a pass over all weights.
        checked = first or debug_sync()
        return WeightUpdate(version, changed, weights_hash(present) if checked else None)


def receive_weights(module: nn.Module, update: WeightUpdate, *, wanted: int) -> None:
    """Put the tensors into the module, in place.

    Raises `BadValue` for another version than `wanted`, unknown names or shapes, and when the hash shows that the
    module then differs from the sender's.
    """
    if update.version != wanted:
        raise BadValue(f"weights of version {update.version} came where version {wanted} was due")
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, one in update.tensors.items():
            if name not in parameters or parameters[name].shape != one.shape:
                raise BadValue(
                    f"weights of version {update.version} hold '{name}' {list(one.shape)}, which the policy here lacks"
                )
            parameters[name].copy_(one)
    if update.digest is not None and weights_hash(trained(module)) != update.digest:
        raise BadValue(
            f"after version {update.version} this rank's weights differ from the first actor rank's; they must have "
            "been different before training began: do all ranks read the same checkpoint and seed?"
        )
