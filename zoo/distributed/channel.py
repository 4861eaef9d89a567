"""Bytes from one rank to another, over gloo; messages between two ranks arrive in the order they were sent."""

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


class Mail:
    """This process's letter box among all processes of the run."""

    def __init__(self, group: Any = None) -> None:
        """`group` is a gloo group of every process."""
        self._group = group
        self._leaving: deque[tuple[Any, Tensor]] = deque()

    def send(self, rank: int, note: Any, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Send a JSON value and tensors; comes back at once, the tensors may then be changed."""
        words = json.dumps(note).encode()
        cargo = save({key: one.contiguous() for key, one in (tensors or {}).items()})
        lengths = torch.tensor([len(words), len(cargo)])
        with lost_ranks():
            for data in (lengths, _as_tensor(words + cargo)):
                self._leaving.append((dist.isend(data, rank, group=self._group), data))
            while self._leaving and self._leaving[0][0].is_completed():
                self._leaving.popleft()

    def receive(self, rank: int) -> tuple[Any, dict[str, Tensor]]:
        """The next message of a rank; waits for it."""
        lengths = torch.zeros(2, dtype=torch.int64)
        with lost_ranks():
            dist.recv(lengths, rank, group=self._group)
            data = torch.zeros(int(lengths.sum()), dtype=torch.uint8)
            dist.recv(data, rank, group=self._group)
        raw = data.numpy().tobytes()
        words = int(lengths[0])
        return json.loads(raw[:words]), load(raw[words:])

    def wait(self) -> None:
        """Until everything sent has arrived."""
        with lost_ranks():
            while self._leaving:
                self._leaving.popleft()[0].wait()


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
