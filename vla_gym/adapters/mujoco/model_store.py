"""Compiled MuJoCo models on disk, each texture and mesh stored once, and loaded tasks in memory.

A compiled LIBERO task is 200-290 MB, nearly all of it textures and meshes that tasks share, so a plain
`.mjb` per task would take tens of gigabytes. `save` cuts the binary image of a model at the borders of
its textures and meshes and files each large piece under its hash; `load` puts the image together again.
MuJoCo's file format is not assumed: pieces are located by content.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import logging
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

import mujoco
import numpy as np

from vla_gym.system.limits import resident_memory, worker_memory
from vla_gym.system.paths import anonymous_file, content_hash, read_json, write_atomic, write_json

MIN_BLOB = 1 << 14
"""Pieces smaller than this (bytes) stay in the model's own file."""
LARGE_ARRAYS: tuple[tuple[str, Callable[[mujoco.MjModel], np.ndarray]], ...] = (
    ("bvh_depth", lambda m: m.mesh_bvhadr),
    ("bvh_child", lambda m: m.mesh_bvhadr),
    ("bvh_nodeid", lambda m: m.mesh_bvhadr),
    ("bvh_aabb", lambda m: m.mesh_bvhadr),
    ("mesh_vert", lambda m: m.mesh_vertadr),
    ("mesh_normal", lambda m: m.mesh_normaladr),
    ("mesh_texcoord", lambda m: m.mesh_texcoordadr),
    ("mesh_face", lambda m: m.mesh_faceadr),
    ("mesh_facenormal", lambda m: m.mesh_faceadr),
    ("mesh_facetexcoord", lambda m: m.mesh_faceadr),
    ("mesh_graph", lambda m: m.mesh_graphadr),
    ("mesh_polynormal", lambda m: m.mesh_polyadr),
    ("mesh_polyvertnum", lambda m: m.mesh_polyadr),
    ("mesh_polyvert", lambda m: m.mesh_polyvertadr[m.mesh_polyadr]),
    ("mesh_polymapnum", lambda m: m.mesh_vertadr),
    ("mesh_polymap", lambda m: m.mesh_polymapadr[m.mesh_vertadr]),
    ("tex_data", lambda m: m.tex_adr),
)
"""Arrays worth cutting, in the order they are stored, each with the first rows of its items."""
_logger = logging.getLogger(__name__)


def log_warnings() -> None:
    """Send MuJoCo's warnings of this process to the log, not to MUJOCO_LOG.TXT in the working folder."""
    mujoco.set_mju_user_warning(lambda text: _logger.warning("MuJoCo: %s", " ".join(text.split())))


def share_textures(model: mujoco.MjModel) -> None:
    """Point materials at the first of several equal textures and empty the others, in place.

    Two bowls bring the same 4096 px texture twice; the image is the same with one, GL memory is not.
    """
    kept: dict[tuple[int, ...], list[int]] = {}
    for tex in range(model.ntex):
        pixels = texture_pixels(model, tex)
        alike = kept.setdefault((int(model.tex_type[tex]), int(model.tex_width[tex]), pixels.size), [])
        keep = next((other for other in alike if np.array_equal(texture_pixels(model, other), pixels)), None)
        if keep is None:
            alike.append(tex)
        else:
            model.mat_texid[model.mat_texid == tex] = keep
            pixels[:] = 0
            model.tex_width[tex] = model.tex_height[tex] = 1


class Piece(NamedTuple):
    """A run of bytes of a model's image with a file of its own."""

    start: int
    stop: int
    blob: str
    """Name of the file that holds it; empty for a run of zeros, which is not filed."""
    texture: int
    """Texture of these pixels, -1 for other data."""

    def file(self, blobs: Path) -> Path:
        """Return the path of the bytes."""
        return blobs / self.blob[:2] / self.blob


def save(model: mujoco.MjModel, folder: Path, blobs: Path) -> None:
    """Write `model` to `folder/model.json` and `folder/model.rest`, its large pieces to `blobs`.

    Raises:
        RuntimeError: if an array is not found in the model's image (MuJoCo changed its format beyond recognition).
    """
    data = bytearray(mujoco.mj_sizeModel(model))
    image = np.frombuffer(data, dtype=np.uint8)
    mujoco.mj_saveModel(model, None, image)
    pieces: list[Piece] = []
    rest = bytearray()
    end = 0
    for start, stop, texture in _large_pieces(model, data):
        rest += image[end:start].data
        content, end = image[start:stop], stop
        pieces.append(Piece(start, stop, content_hash(content.data) if content.any() else "", texture))
        if pieces[-1].blob and not _has_size(pieces[-1].file(blobs), content.size):
            write_atomic(pieces[-1].file(blobs), content.data)
    rest += image[end:].data
    write_atomic(folder / "model.rest", rest)
    write_json(folder / "model.json", {"size": len(data), "pieces": pieces, "rest": content_hash(rest)})


def digest(folder: Path) -> str:
    """Return a hash that folders share whose models are equal; raise `FileNotFoundError` as `load`."""
    return content_hash(repr(sorted(read_json(folder / "model.json").items())).encode())


def load(folder: Path, blobs: Path, *, painted: bool = True) -> tuple[mujoco.MjModel, dict[int, Path]]:
    """Read a model written by `save`: the model, and texture id -> file of the pixels of its large textures.

    Args:
        folder, blobs: as of `save`.
        painted: whether these textures are read, too. Two thirds of a model are pixels that GL often holds already;
            without them it loads three times as fast.

    Raises:
        FileNotFoundError: if a file is gone or damaged; the caller compiles the model anew.
    """
    layout = read_json(folder / "model.json")
    pieces = [Piece(*fields) for fields in layout["pieces"]]
    rest = memoryview(_read_exactly(folder / "model.rest", layout["rest"]))
    image = anonymous_file(layout["size"])  # what is left out is a hole, which reads as zeros
    try:
        taken = end = 0
        for piece in pieces:
            between = piece.start - end
            os.pwrite(image, rest[taken : taken + between], end)
            taken, end = taken + between, piece.stop
            if piece.blob and (painted or piece.texture < 0):
                os.pwrite(image, read_piece(piece.file(blobs)), piece.start)
            elif piece.blob and not _has_size(piece.file(blobs), piece.stop - piece.start):
                raise FileNotFoundError(f"cached texture {piece.file(blobs)} is gone or cut short")
        os.pwrite(image, rest[taken:], end)
        model = mujoco.MjModel.from_binary_path(f"/dev/fd/{image}")
    finally:
        os.close(image)
    if trim := _malloc_trim():
        trim(0)  # MuJoCo freed a copy of the file; small allocations would soon pin it in the heap
    return model, {piece.texture: piece.file(blobs) for piece in pieces if piece.texture >= 0 and piece.blob}


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    """The function of glibc that gives free memory back to the system, where there is one."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def read_piece(file: Path) -> bytes:
    """Return the bytes of a piece, whose file bears their hash as its name; a process checks it once.

    Raises:
        FileNotFoundError: if it is gone or damaged; a damaged one is removed, so that it is written anew.
    """
    try:
        version = file, file.stat().st_mtime_ns
        if version in _CHECKED:
            return file.read_bytes()
        data = _read_exactly(file, file.name)
        _CHECKED.add(version)
        return data
    except FileNotFoundError:
        with suppress(OSError):
            file.unlink(missing_ok=True)
        raise


_CHECKED: set[tuple[Path, int]] = set()
"""Pieces that this process has found whole, and when they were written."""


def _read_exactly(file: Path, wanted: str) -> bytes:
    data = file.read_bytes()
    if content_hash(data) != wanted:
        raise FileNotFoundError(f"cached piece {file} of a compiled model is damaged: it is not what was written")
    return data


def _has_size(file: Path, size: int) -> bool:
    return file.is_file() and file.stat().st_size == size


def texture_pixels(model: mujoco.MjModel, tex: int) -> np.ndarray:
    """Return a view of a texture's pixels, u8 `[width * height * channels]`."""
    start = int(model.tex_adr[tex])
    count = int(model.tex_width[tex]) * int(model.tex_height[tex]) * int(model.tex_nchannel[tex])
    return model.tex_data[start : start + count]


def _large_pieces(model: mujoco.MjModel, data: bytearray) -> Iterator[tuple[int, int, int]]:
    """Yield byte ranges worth filing on their own, ascending and disjoint, each with its texture or -1."""
    textures = {int(start): tex for tex, start in enumerate(model.tex_adr)}
    searched = 0  # several arrays may hold equal bytes, so each is looked for behind the one before it
    for name, starts in LARGE_ARRAYS:
        array = getattr(model, name)
        if array.nbytes < MIN_BLOB:
            continue
        base = _find(array, data, searched)
        if base < 0:
            raise RuntimeError(f"{name} is not where MuJoCo {mujoco.__version__} is known to store it")
        searched = base + array.nbytes
        row = array.itemsize * int(np.prod(array.shape[1:], dtype=int))
        cuts = sorted({int(start) * row for start in starts(model) if start >= 0} | {0, array.nbytes})
        for start, stop in itertools.pairwise(cuts):
            if stop - start >= MIN_BLOB:
                yield base + start, base + stop, textures[start] if name == "tex_data" else -1


def _find(array: np.ndarray, data: bytearray, start: int) -> int:
    """Return where the bytes of `array` begin in `data`, at `start` or behind it; -1 where they do not."""
    flat = array.reshape(-1).view(np.uint8)
    found = data.find(flat[:MIN_BLOB].tobytes(), start)
    if found < 0 or np.array_equal(np.frombuffer(data, dtype=np.uint8)[found : found + flat.size], flat):
        return found
    return data.find(flat.tobytes(), found + 1)


class Closable(Protocol):
    """Anything that holds resources, such as those of GL."""

    def close(self) -> None:
        """Free them."""


Loaded = TypeVar("Loaded", bound=Closable)


class TaskCache(Generic[Loaded]):
    """Loaded tasks of a process, shared by the slots that play them; those in use are never dropped.

    Others are kept while the process takes less memory than `system.limits.worker_memory`; the least recently used go
    first.

    Args:
        load: loads a task; its arguments are the task's key.
    """

    def __init__(self, load: Callable[..., Loaded]) -> None:
        self._load = load
        self._loaded: OrderedDict[tuple[Hashable, ...], Loaded] = OrderedDict()
        self._num_users: Counter[tuple[Hashable, ...]] = Counter()

    def acquire(self, *key: Hashable) -> Loaded:
        """Return the task, loaded now if need be; pair with `release`."""
        if key not in self._loaded:
            self._loaded[key] = self._load(*key)
        self._loaded.move_to_end(key)
        self._num_users[key] += 1
        return self._loaded[key]

    def release(self, *key: Hashable) -> None:
        """End one slot's use of a task, which stays loaded while there is memory."""
        self._num_users[key] -= 1
        for other in [key for key in self._loaded if not self._num_users[key]]:
            if resident_memory() < worker_memory():
                break
            self._loaded.pop(other).close()
