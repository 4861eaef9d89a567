"""Weights sent from the rank that trains to ranks that decide: changes, under a version, checked by a hash.

Only trained parameters are sent (the adapter and the value head under LoRA), and of those only the ones whose numbers
changed since they were last sent. Every rank has read the others from the same place.
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
    """The difference between the weights of one version and those sent before."""

    version: int
    """Updates that the weights have gone through."""
    tensors: Mapping[str, Tensor]
    """Parameter name -> new values, on the CPU."""
    digest: str | None
    """`weights_hash` of all trained parameters, these included; None where it is not checked."""

    @property
    def size(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


def trained(module: nn.Module) -> dict[str, Tensor]:
    """The trained parameters, detached, by name."""
    return {name: parameter.detach() for name, parameter in module.named_parameters() if parameter.requires_grad}


def weights_hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes; equal exactly when all of them are."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def debug_sync() -> bool:
    """Whether `VLA_ZOO_DEBUG_SYNC` has every version of the weights checked by a hash."""
    return bool(os.environ.get("VLA_ZOO_DEBUG_SYNC"))


class WeightSender:
    """Keeps the weights sent last, and sends those that differ."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._sent: dict[str, Tensor] = {}

    def update(self, version: int) -> WeightUpdate:
        """The update to the module's present weights; all trained weights the first time."""
        first = not self._sent
        present = {name: tensor.cpu() for name, tensor in trained(self._module).items()}
        changed = {
            name: tensor.clone()
            for name, tensor in present.items()
            if name not in self._sent or not torch.equal(tensor, self._sent[name])
        }
        self._sent.update(changed)
        # Ranks that read different checkpoints show at the first version; a hash is a pass over all weights.
        checked = first or debug_sync()
        return WeightUpdate(version, changed, weights_hash(present) if checked else None)


def receive_weights(module: nn.Module, update: WeightUpdate, *, wanted: int) -> None:
    """Copy the tensors into the module.

    Raises `BadValue` for another version than `wanted`, unknown names or shapes, and when the module's hash then
    differs from the sender's.
    """
    if update.version != wanted:
        raise BadValue(f"weights of version {update.version} came where version {wanted} was due")
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, tensor in update.tensors.items():
            if name not in parameters or parameters[name].shape != tensor.shape:
                raise BadValue(
                    f"weights of version {update.version} hold '{name}' {list(tensor.shape)}, which the policy here "
                    "lacks"
                )
            parameters[name].copy_(tensor)
    if update.digest is not None and weights_hash(trained(module)) != update.digest:
        raise BadValue(
            f"after version {update.version} this rank's weights differ from the first actor rank's; they must have "
            "been different before training began: do all ranks read the same checkpoint and seed?"
        )
