"""Simplified meshes of compiled models on disk, each made once per machine and shared by the tasks that draw it."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import mujoco
import numpy as np

from vla_gym.adapters.mujoco.simple_meshes import MIN_FACES, SETTINGS, Corners, simplify
from vla_gym.system.cache import content_hash, locked, write_atomic

DIGEST = len(content_hash(b""))
"""Characters before the content of a file: its hash."""
logger = logging.getLogger(__name__)


def simple_meshes(model: mujoco.MjModel, root: Path, *, hidden_groups: Sequence[int] = ()) -> dict[int, Corners]:
    """Return mesh id -> its simplified triangles, for the meshes that are drawn and worth it.

    Args:
        model: compiled model.
        root: folder of the files; what is missing there is made now (a second per large mesh) and kept.
        hidden_groups: geom groups that are not drawn.
    """
    drawn = (model.geom_type == mujoco.mjtGeom.mjGEOM_MESH) & ~np.isin(model.geom_group, hidden_groups)
    meshes = [int(mesh) for mesh in np.unique(model.geom_dataid[drawn]) if model.mesh_facenum[mesh] >= MIN_FACES]
    return {mesh: _kept(mesh_corners(model, mesh), root) for mesh in meshes}


def mesh_corners(model: mujoco.MjModel, mesh: int) -> Corners:
    """Return the triangles of a model's mesh as MuJoCo uploads them (render_context.c:mjr_uploadMesh)."""
    first = model.mesh_faceadr[mesh]
    rows = slice(first, first + model.mesh_facenum[mesh])
    texcoord = None
    if model.mesh_texcoordadr[mesh] >= 0:
        texcoord = model.mesh_texcoord[model.mesh_texcoordadr[mesh] + model.mesh_facetexcoord[rows].ravel()]
    return Corners(
        vertex_C3=model.mesh_vert[model.mesh_vertadr[mesh] + model.mesh_face[rows].ravel()],
        normal_C3=model.mesh_normal[model.mesh_normaladr[mesh] + model.mesh_facenormal[rows].ravel()],
        texcoord_C2=texcoord,
    )


def _kept(mesh: Corners, root: Path) -> Corners:
    parts = [part.tobytes() for part in asdict(mesh).values() if part is not None]
    key = content_hash(b"".join([repr((SETTINGS, version("fast-simplification"))).encode(), *parts]))
    file = root / key[:2] / key
    try:
        return _read(file)
    except FileNotFoundError:  # also of what is damaged
        with locked(root / "simplifying.lock"):
            try:
                return _read(file)  # another worker has made it meanwhile
            except FileNotFoundError:
                logger.info("simplifying a mesh of %d triangles (once per machine)", len(mesh.vertex_C3) // 3)
                simple = simplify(mesh)
                _write(file, simple)
                return simple


def _write(file: Path, mesh: Corners) -> None:
    stream = io.BytesIO()
    np.savez(stream, **{name: part for name, part in asdict(mesh).items() if part is not None})
    content = stream.getvalue()
    write_atomic(file, content_hash(content).encode() + content)


def _read(file: Path) -> Corners:
    data = file.read_bytes()
    digest, content = data[:DIGEST], data[DIGEST:]
    if content_hash(content).encode() != digest:
        raise FileNotFoundError(f"cached mesh {file} is damaged: its content is not what was written")
    with np.load(io.BytesIO(content), allow_pickle=False) as parts:
        return Corners(parts["vertex_C3"], parts["normal_C3"], parts.get("texcoord_C2"))
