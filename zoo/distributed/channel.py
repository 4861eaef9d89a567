"""Messages from one rank to another, over gloo; those between two ranks arrive in the order they were sent.

A message is a JSON header, which names and describes its tensors, followed by the tensors' own memory.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

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
        """`tensor`, filled with what the rank sends next."""
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
