"""Compiled MuJoCo models on disk, each texture and mesh stored once.

A compiled LIBERO task is 200-290 MB, nearly all of it textures and meshes that tasks share, so a plain
`.mjb` per task would take tens of gigabytes. `save` cuts the binary image of a model at the borders of
its textures and meshes and files each large piece under its hash; `load` puts the image together again.
MuJoCo's file format is not assumed: pieces are located by content.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np

from vla_gym.system.cache import content_hash, read_json, write_atomic, write_json

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


def share_textures(model: mujoco.MjModel) -> None:
    """Point materials at the first of several equal textures and empty the others, in place.

    Two bowls bring the same 4096 px texture twice; the picture is the same with one, GL memory is not.
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


@dataclass(frozen=True)
class Piece:
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
        blob = content_hash(image[start:stop].data) if image[start:stop].any() else ""
        pieces.append(Piece(start, stop, blob, texture))
        if blob:
            _write_once(pieces[-1].file(blobs), image[start:stop].data)
        end = stop
    rest += image[end:].data
    write_atomic(folder / "model.rest", rest)
    filed = [[piece.start, piece.stop, piece.blob, piece.texture] for piece in pieces]
    write_json(folder / "model.json", {"size": len(data), "pieces": filed, "rest": content_hash(rest)})


def digest(folder: Path) -> str:
    """Return a hash that folders share whose models are equal.

    Raises:
        FileNotFoundError: as `load`.
    """
    layout = _layout(folder)
    own = "" if layout.rest is not None else str(folder)  # version 0.1 did not hash all of it
    return content_hash(f"{layout}{own}".encode())


def load(folder: Path, blobs: Path) -> mujoco.MjModel:
    """Read a model written by `save`.

    Raises:
        FileNotFoundError: if a file is gone or damaged; the caller compiles the model anew.
    """
    return _model(folder, blobs, _layout(folder).pieces)


def _model(folder: Path, blobs: Path, needed: list[Piece]) -> mujoco.MjModel:
    try:
        with _image(folder, blobs, needed) as path:
            return mujoco.MjModel.from_binary_path(path)
    except (ValueError, RuntimeError, mujoco.FatalError) as error:
        raise FileNotFoundError(f"the compiled model in {folder} is damaged: {error}") from error


def load_unpainted(folder: Path, blobs: Path) -> tuple[mujoco.MjModel, dict[int, Path]]:
    """Read a model but leave its large textures black: the model, and the file of each such texture's pixels.

    Two thirds of a model are pixels that GL often holds already; without them it loads three times as fast.

    Raises:
        FileNotFoundError: as `load`.
    """
    pieces = _layout(folder).pieces
    model = _model(folder, blobs, [piece for piece in pieces if piece.texture < 0])
    painted = {piece.texture: piece for piece in pieces if piece.texture >= 0 and piece.blob}
    for piece in painted.values():
        if not _has_size(piece.file(blobs), piece.stop - piece.start):
            raise FileNotFoundError(f"cached texture {piece.file(blobs)} is gone or cut short")
    return model, {texture: piece.file(blobs) for texture, piece in painted.items()}


@dataclass(frozen=True)
class _Layout:
    """A model's image on disk."""

    size: int
    """Its bytes."""
    pieces: list[Piece]
    """Those with files of their own."""
    rest: str | None
    """Hash of the others; None in files of version 0.1."""


def _layout(folder: Path) -> _Layout:
    layout = read_json(folder / "model.json")
    try:
        return _Layout(layout["size"], [Piece(*fields) for fields in layout["pieces"]], layout.get("rest"))
    except (AttributeError, LookupError, TypeError) as error:
        raise FileNotFoundError(f"cached file {folder / 'model.json'} is damaged: {error!r}") from error


@contextmanager
def _image(folder: Path, blobs: Path, needed: list[Piece]) -> Iterator[str]:
    """Context manager with the path of the image in memory; pieces not `needed` stay holes, which read as zeros."""
    layout = _layout(folder)
    pieces = layout.pieces
    filed = sum(piece.stop - piece.start for piece in pieces)
    rest = memoryview(read_exactly(folder / "model.rest", layout.size - filed, layout.rest))
    with _memory_file(layout.size) as (handle, path):
        taken = end = 0
        for piece in pieces:
            between = piece.start - end
            os.pwrite(handle, rest[taken : taken + between], end)
            taken, end = taken + between, piece.stop
        os.pwrite(handle, rest[taken:], end)
        for piece in needed:
            if piece.blob:
                os.pwrite(handle, read_piece(piece.file(blobs), piece.stop - piece.start), piece.start)
        yield path


@contextmanager
def _memory_file(size: int) -> Iterator[tuple[int, str]]:
    """Context manager with handle and path of a file of `size` zeros, in memory where the system offers that."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("compiled-model")
        try:
            os.ftruncate(handle, size)
            yield handle, f"/proc/self/fd/{handle}"
        finally:
            os.close(handle)
        return
    with tempfile.NamedTemporaryFile() as stream:
        stream.truncate(size)
        yield stream.fileno(), stream.name


def read_piece(file: Path, count: int) -> bytes:
    """Return the `count` bytes of a piece, whose file bears their hash as its name.

    Raises:
        FileNotFoundError: if it is gone or damaged; a damaged one is removed, so that it is written anew.
    """
    try:
        return read_exactly(file, count, file.name)
    except FileNotFoundError:
        with suppress(OSError):
            file.unlink(missing_ok=True)
        raise


def read_exactly(file: Path, count: int, digest: str | None) -> bytes:
    """Return the `count` bytes of a file, which have the `digest`, if one is known.

    Raises:
        FileNotFoundError: if it is gone, shorter (as after an interrupted copy of the cache) or holds something else.
    """
    data = file.read_bytes()
    if len(data) != count:
        raise FileNotFoundError(f"cached piece {file} of a compiled model is cut short: {len(data)} of {count} bytes")
    if digest is not None and content_hash(data) != digest:
        raise FileNotFoundError(f"cached piece {file} of a compiled model is damaged: it is not what was written")
    return data


def _write_once(path: Path, data: memoryview) -> None:
    if not _has_size(path, len(data)):
        write_atomic(path, data)


def _has_size(file: Path, size: int) -> bool:
    try:
        return file.stat().st_size == size
    except FileNotFoundError:
        return False


def texture_pixels(model: mujoco.MjModel, tex: int) -> np.ndarray:
    """View of a texture's pixels, u8 `[width * height * channels]`."""
    start = int(model.tex_adr[tex])
    count = int(model.tex_width[tex]) * int(model.tex_height[tex]) * int(model.tex_nchannel[tex])
    return model.tex_data[start : start + count]


def _large_pieces(model: mujoco.MjModel, data: bytearray) -> Iterator[tuple[int, int, int]]:
    """Byte ranges worth filing on their own, ascending and disjoint, each with its texture or -1."""
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
    """Where the bytes of `array` begin in `data`, at `start` or behind it; -1 where they do not."""
    flat = array.reshape(-1).view(np.uint8)
    found = data.find(flat[:MIN_BLOB].tobytes(), start)
    if found < 0 or np.array_equal(np.frombuffer(data, dtype=np.uint8)[found : found + flat.size], flat):
        return found
    return data.find(flat.tobytes(), found + 1)
