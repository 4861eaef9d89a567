"""Messages from one rank to another, over gloo; those between two ranks arrive in the order they were sent."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor

from zoo.distributed.process_group import lost_ranks


class Channel:
    """Messages between this process and every other one of the run."""

    def __init__(self, group: Any = None) -> None:
        """`group` is a gloo group of every process."""
        self._group = group
        self._sending: deque[tuple[Any, Tensor]] = deque()

    def send(self, rank: int, metadata: Any, payload: Mapping[str, Tensor] | None = None) -> None:
        """Send a JSON value and tensors; returns at once, the tensors may then be changed."""
        header = json.dumps(metadata).encode()
        body = save({key: tensor.contiguous() for key, tensor in (payload or {}).items()})
        lengths = torch.tensor([len(header), len(body)])
        with lost_ranks():
            for data in (lengths, torch.frombuffer(bytearray(header + body), dtype=torch.uint8)):
                self._sending.append((dist.isend(data, rank, group=self._group), data))
            while self._sending and self._sending[0][0].is_completed():
                self._sending.popleft()

    def receive(self, rank: int) -> tuple[Any, dict[str, Tensor]]:
        """Return metadata and payload of a rank's next message; waits for it."""
        lengths = torch.zeros(2, dtype=torch.int64)
        with lost_ranks():
            dist.recv(lengths, rank, group=self._group)
            data = torch.zeros(int(lengths.sum()), dtype=torch.uint8)
            dist.recv(data, rank, group=self._group)
        raw = data.numpy().tobytes()
        header = int(lengths[0])
        return json.loads(raw[:header]), load(raw[header:])

    def wait(self) -> None:
        """Wait until everything sent has arrived."""
        with lost_ranks():
            while self._sending:
                self._sending.popleft()[0].wait()
