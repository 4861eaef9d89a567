"""Trained weights broadcast from the rank that trains to ranks that decide, as one flat buffer for each data type.

Only trained parameters travel (the adapter and the value head under LoRA); every rank has read the others from the
same place. Buffers lie on the GPU and go over NCCL where every rank of the group has one, else on the CPU over gloo.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zoo.distributed.process_group import lost_ranks


class WeightSync:
    """The trained parameters of `module`, equal after `send` here and `receive` on the other ranks of `group`."""

    def __init__(self, module: nn.Module, source: int, group: Any, device: torch.device) -> None:
        """`source`: number of the sending rank in the run; `device`: of the buffers, one that `group` can send."""
        self._module = module
        self._source = source
        self._group = group
        self._device = device
        self._flat: dict[torch.dtype, Tensor] = {}
        self._sending: list[Any] = []

    @torch.no_grad()
    def send(self) -> int:
        """Begin to send the present weights, which may then be changed; returns the number of bytes.

        Waits until every rank has those of the call before.
        """
        self.wait()
        for flat, parts in self._buffers():
            for part, parameter in parts:
                part.copy_(parameter)
            with lost_ranks():
                self._sending.append(dist.broadcast(flat, self._source, group=self._group, async_op=True))
        return sum(flat.nbytes for flat in self._flat.values())

    def wait(self) -> None:
        """Wait until what was sent has been received."""
        with lost_ranks():
            while self._sending:
                self._sending.pop(0).wait()

    @torch.no_grad()
    def receive(self) -> None:
        """Wait for the source's weights, and take them over in place."""
        for flat, parts in self._buffers():
            with lost_ranks():
                dist.broadcast(flat, self._source, group=self._group)
            for part, parameter in parts:
                parameter.copy_(part)

    def _buffers(self) -> Iterator[tuple[Tensor, list[tuple[Tensor, Tensor]]]]:
        """A flat buffer for each data type, the same every time, with its parts in the shapes of their parameters."""
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for tensor in trained(self._module).values():
            kinds.setdefault(tensor.dtype, []).append(tensor)
        for dtype, parameters in kinds.items():
            sizes = [parameter.numel() for parameter in parameters]
            if dtype not in self._flat:
                self._flat[dtype] = torch.empty(sum(sizes), dtype=dtype, device=self._device)
            flat = self._flat[dtype]
            parts = [part.view_as(parameter) for part, parameter in zip(flat.split(sizes), parameters, strict=True)]
            yield flat, list(zip(parts, parameters, strict=True))


def trained(module: nn.Module) -> dict[str, Tensor]:
    """The trained parameters, detached, by name."""
    return {name: parameter.detach() for name, parameter in module.named_parameters() if parameter.requires_grad}


def weights_layout(module: nn.Module) -> str:
    """SHA-256 over names, types and shapes of the trained parameters: what two ranks must agree on to share them."""
    lines = [f"{name} {tensor.dtype} {tuple(tensor.shape)}" for name, tensor in trained(module).items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


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
