"""Pictures of recorded episodes: where they stay until they are learned, and where they lie while they are."""

from __future__ import annotations

import errno
import logging
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from vla_gym.errors import BadValue
from vla_gym.system.limits import main_memory

_logger = logging.getLogger(__name__)

MEMORY_SHARE = 0.5
"""Share of the main memory above which pictures lie in a file; the rest is for the network and for simulators."""
LOCAL_RANKS = "LOCAL_WORLD_SIZE"
"""Variable in which torchrun and Accelerate say how many processes share this machine's memory."""


@dataclass(frozen=True)
class StoredPictures:
    """A camera's pictures of an episode in the files of its dataset; numpy reads them each time it wants an array."""

    shape: tuple[int, int, int, int]
    """(T, H, W, 3), as `read` returns them."""
    read: Callable[[], np.ndarray]
    """Reads them, uint8; raises `BadValue` where that fails."""

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        """`np.asarray(pictures)`."""
        return self.read()


def picture_arrays(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return new uint8 arrays to be written; if they are large together they lie in a file of `$TMPDIR`.

    The file goes with the process, and the system keeps in memory what it has room for of it. Raises `BadValue` where
    neither has room.
    """
    sizes = [math.prod(shape) for shape in shapes.values()]
    parts = np.split(_bytes(sum(sizes)), np.cumsum(sizes)[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def _bytes(size: int) -> np.ndarray:
    memory = main_memory()
    if size <= MEMORY_SHARE * memory / int(os.environ.get(LOCAL_RANKS, "1")):
        return np.empty(size, np.uint8)
    folder = tempfile.gettempdir()
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            # What is reserved cannot run out while the array is written, which would end the process.
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                raise
            raise BadValue(
                f"pictures of {_gigabytes(size)} are to be learned; the memory has {_gigabytes(memory)}, and there is "
                f"no room for them in '{folder}'. Name a folder of a larger disk in the variable TMPDIR, or learn "
                "fewer episodes (--episodes of zoo.sft)"
            ) from error
        _logger.info(f"{_gigabytes(size)} of pictures lie in a file of '{folder}' (memory: {_gigabytes(memory)})")
        return np.memmap(file, np.uint8, "r+", shape=(size,))


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
