"""Compiled MuJoCo models on disk, each texture and mesh stored once.

A compiled LIBERO task is 200-290 MB, nearly all of it textures and meshes that tasks share, so a plain
`.mjb` per task would take tens of gigabytes. `save` cuts the binary image of a model at the borders of
its textures and meshes and files each large piece under its hash; `load` puts the image together again.
Nothing about MuJoCo's file format is assumed: pieces are located by content and the whole is compared.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import mujoco
import numpy as np

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
    first: dict[tuple[int, int, int, bytes], int] = {}
    for tex in range(model.ntex):
        pixels = _texture(model, tex)
        key = (
            int(model.tex_type[tex]),
            int(model.tex_width[tex]),
            int(model.tex_height[tex]),
            hashlib.blake2b(pixels.tobytes()).digest(),
        )
        keep = first.setdefault(key, tex)
        if keep != tex:
            model.mat_texid[model.mat_texid == tex] = keep
            pixels[:] = 0
            model.tex_width[tex] = model.tex_height[tex] = 1


def save(model: mujoco.MjModel, folder: Path, blobs: Path) -> None:
    """Write `model` to `folder/model.json` and `folder/model.rest`, its large pieces to `blobs`.

    Raises:
        RuntimeError: if the model read back would differ (MuJoCo changed its format beyond recognition).
    """
    image = np.empty(mujoco.mj_sizeModel(model), dtype=np.uint8)
    mujoco.mj_saveModel(model, None, image)
    data = image.tobytes()
    pieces: list[list[object]] = []
    rest = bytearray()
    end = 0
    for start, stop in _large_pieces(model, data):
        rest += data[end:start]
        digest = hashlib.blake2b(data[start:stop], digest_size=20).hexdigest()
        pieces.append([start, stop, digest])
        _write_once(blobs / digest[:2] / digest, data[start:stop])
        end = stop
    rest += data[end:]
    write_atomic(folder / "model.rest", bytes(rest))
    write_atomic(folder / "model.json", json.dumps({"size": len(data), "pieces": pieces}).encode())
    if _image(folder, blobs) != data:
        raise RuntimeError(f"the compiled model in {folder} does not read back as it was written")


def load(folder: Path, blobs: Path) -> mujoco.MjModel:
    """Read a model written by `save`.

    Raises:
        FileNotFoundError: if a piece is gone; the caller compiles the model anew.
    """
    return mujoco.MjModel.from_binary_path("model.mjb", {"model.mjb": bytes(_image(folder, blobs))})


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file that is either whole or absent, also when the process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _image(folder: Path, blobs: Path) -> bytearray:
    layout = json.loads((folder / "model.json").read_text())
    rest = memoryview((folder / "model.rest").read_bytes())
    image = bytearray(layout["size"])
    view = memoryview(image)
    taken = end = 0
    for start, stop, digest in layout["pieces"]:
        view[end:start] = rest[taken : taken + start - end]
        taken += start - end
        with (blobs / digest[:2] / digest).open("rb") as stream:
            if stream.readinto(view[start:stop]) != stop - start:
                raise FileNotFoundError(f"cached piece {digest} of a compiled model is cut short")
        end = stop
    view[end:] = rest[taken:]
    return image


def _write_once(path: Path, data: bytes) -> None:
    if not path.exists():
        write_atomic(path, data)


def _texture(model: mujoco.MjModel, tex: int) -> np.ndarray:
    start = int(model.tex_adr[tex])
    count = int(model.tex_width[tex]) * int(model.tex_height[tex]) * int(model.tex_nchannel[tex])
    return model.tex_data[start : start + count]


def _large_pieces(model: mujoco.MjModel, data: bytes) -> Iterator[tuple[int, int]]:
    """Byte ranges worth filing on their own, ascending and disjoint."""
    searched = 0  # several arrays may hold equal bytes, so each is looked for behind the one before it
    for name, starts in LARGE_ARRAYS:
        array = getattr(model, name)
        if array.nbytes < MIN_BLOB:
            continue
        base = data.find(array.tobytes(), searched)
        if base < 0:
            raise RuntimeError(f"{name} is not where MuJoCo {mujoco.__version__} is known to store it")
        searched = base + array.nbytes
        row = array.itemsize * int(np.prod(array.shape[1:], dtype=int))
        cuts = sorted({int(start) * row for start in starts(model) if start >= 0} | {0, array.nbytes})
        for start, stop in itertools.pairwise(cuts):
            if stop - start >= MIN_BLOB:
                yield base + start, base + stop
