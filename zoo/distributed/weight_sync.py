"""Exchange between ranks with different roles: messages with tensors, and the trained weights.

A message is a JSON header, which names and describes its tensors, followed by the tensors' own memory; it goes over
gloo. Weights are broadcast from the rank that trains as one flat buffer for each data type. Only trained parameters
travel (the adapter and the value head under LoRA); every rank has read the others from the same place. Buffers lie on
the GPU and go over NCCL where every rank of the group has one, else on the CPU over gloo.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zoo.distributed.process_group import lost_ranks


class Channel:
    """Messages between this process and every other one of the run."""

    def __init__(self, group: Any = None) -> None:
        """`group` is a gloo group of every process."""
        self._group = group
        self._sending: deque[tuple[Any, Tensor]] = deque()

    def send(self, rank: int, metadata: Any, payload: Mapping[str, Tensor] | None = None) -> None:
        """Send a JSON value and tensors on the CPU; returns at once, the tensors are left alone until `wait`."""
        tensors = {name: tensor.contiguous() for name, tensor in (payload or {}).items()}
        layout = [[name, str(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()]
        header = torch.frombuffer(bytearray(json.dumps([metadata, layout]).encode()), dtype=torch.uint8)
        with lost_ranks():
            for data in (torch.tensor([len(header)]), header, *filter(Tensor.numel, tensors.values())):
                self._sending.append((dist.isend(data, rank, group=self._group), data))
            while self._sending and self._sending[0][0].is_completed():
                self._sending.popleft()

    def receive(self, rank: int) -> tuple[Any, dict[str, Tensor]]:
        """Return metadata and payload of a rank's next message; waits for it."""
        length = int(self._receive(rank, torch.empty(1, dtype=torch.int64)))
        header = self._receive(rank, torch.empty(length, dtype=torch.uint8))
        metadata, layout = json.loads(header.numpy().tobytes())
        empty = {name: torch.empty(shape, dtype=_DTYPES[dtype]) for name, dtype, shape in layout}
        return metadata, {name: self._receive(rank, tensor) for name, tensor in empty.items()}

    def wait(self) -> None:
        """Wait until everything sent has arrived."""
        with lost_ranks():
            while self._sending:
                self._sending.popleft()[0].wait()

    def _receive(self, rank: int, tensor: Tensor) -> Tensor:
        if tensor.numel():
            with lost_ranks():
                dist.recv(tensor, rank, group=self._group)
        return tensor


_DTYPES = {
    str(dtype): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int32, torch.int64),
        *(torch.bfloat16, torch.float16, torch.float32, torch.float64),
    )
}


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
    """Return the trained parameters, detached, by name."""
    return {name: parameter.detach() for name, parameter in module.named_parameters() if parameter.requires_grad}
