"""Arrays that a parent and its workers share: the actions of each slot, and its last observation."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vla_gym.observation import ObservationLayout

_ALIGN = 64  # bytes, one cache line


@dataclass(frozen=True, kw_only=True)
class MemoryLayout:
    """Sizes of everything in the block: N slots, chunks `[K, A]`, and the observation of each slot."""

    num_slots: int
    chunk: int
    action_dim: int
    observation: ObservationLayout

    def arrays(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Name -> (shape, dtype), slots first."""
        fields: dict[str, tuple[tuple[int, ...], np.dtype]] = {
            "action": ((self.num_slots, self.chunk, self.action_dim), np.dtype(np.float32))
        }
        for key, (shape, dtype) in self.observation.arrays().items():
            fields[key] = ((self.num_slots, *shape), dtype)
        return fields

    def offsets(self) -> tuple[dict[str, int], int]:
        """Byte offset of each array, and the size of the block."""
        offsets: dict[str, int] = {}
        position = 0
        for name, (shape, dtype) in self.arrays().items():
            offsets[name] = position
            size = int(np.prod(shape)) * dtype.itemsize
            position += -(-size // _ALIGN) * _ALIGN
        return offsets, position


class SlotMemory:
    """NumPy views `action` `[N, K, A]` and one `[N, ...]` per observation key, over one block of memory."""

    def __init__(self, layout: MemoryLayout, block: mmap.mmap) -> None:
        self.layout = layout
        self._block = block
        offsets, _ = layout.offsets()
        views = {
            name: np.ndarray(shape, dtype, buffer=block, offset=offsets[name])
            for name, (shape, dtype) in layout.arrays().items()
        }
        self.action_NKA: np.ndarray = views.pop("action")
        self.observation: dict[str, np.ndarray] = views

    @classmethod
    def private(cls, layout: MemoryLayout) -> SlotMemory:
        """Memory of this process only."""
        return cls(layout, mmap.mmap(-1, layout.offsets()[1]))

    @classmethod
    def attach(cls, layout: MemoryLayout, fd: int) -> SlotMemory:
        """Memory behind a file descriptor made by `shared_block`."""
        return cls(layout, mmap.mmap(fd, layout.offsets()[1]))

    def write(self, slot: int, observation: Mapping[str, np.ndarray]) -> None:
        """Copy one slot's observation in; `ValueError` when a key, shape or dtype is not as declared."""
        if observation.keys() != self.observation.keys():
            raise ValueError(f"observation has keys {sorted(observation)}, declared are {sorted(self.observation)}")
        for key, value in observation.items():
            target = self.observation[key][slot]
            if value.shape != target.shape or value.dtype != target.dtype:
                raise ValueError(
                    f"observation '{key}' is {value.dtype}{list(value.shape)}, "
                    f"declared is {target.dtype}{list(target.shape)}"
                )
            target[...] = value


def shared_block(size: int) -> int:
    """File descriptor of `size` zero bytes without a name, so that not even SIGKILL leaves them behind."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("vla-gym", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd
