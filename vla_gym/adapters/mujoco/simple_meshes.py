"""Meshes of fewer triangles that look much the same, for images drawn faster than exactly.

Scanned objects and CAD robots have ten triangles a pixel. `fast_simplification` (quadric error metrics, Garland and
Heckbert 1997) collapses edges of the shape alone; normals and texture coordinates of the new corners are then
looked up on the old surface. A mesh keeps as many triangles as its surface needs to keep its directions.
"""

from __future__ import annotations

import io
import logging
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import mujoco
import numpy as np

from vla_gym.system.paths import content_hash, locked, read_hashed, write_hashed

MIN_FACES = 2000
"""Smaller meshes are drawn as they are: handles and burner plates need all they have, and cost little."""
LEVELS = (0.1, 0.2, 0.4)
"""Shares of a mesh's triangles that are tried, in this order."""
MAX_TURN = 0.025
"""Largest mean of 1 - cos between the old surface's directions and the new one's."""
MAX_PART_CHANGE = 0.05
"""Largest change of the area of a part (triangles that hang together), as a share; a part that would change more stays
as it is. Open edges have no price, so that panes and sheets would shrink."""
LEAST_PART = 0.001
"""Share of the whole area below which a part may change as it likes: screws and rims have thousands of triangles."""
LEAST_FACES = 1000
"""No mesh becomes smaller."""
AGGRESSIVENESS = 3.0
"""Of `fast_simplification` (default 7): lower follows the surface more closely."""
INSET = 0.1
"""Corners are looked up this far towards the middle of their triangle, so that they find their own side of a seam."""
NUM_SAMPLES = 8
"""Points of a surface by which its triangles are found, over its triangles: large ones have more of them."""
NUM_NEAR = 12
"""Nearest of those points, among whose triangles the one under a point is sought."""
TURN_COST = 0.03
"""Distance, in extents of the mesh, that a right angle between two directions counts for."""
SETTINGS = (
    MIN_FACES,
    LEVELS,
    MAX_TURN,
    MAX_PART_CHANGE,
    LEAST_PART,
    LEAST_FACES,
    AGGRESSIVENESS,
    INSET,
    NUM_SAMPLES,
    NUM_NEAR,
    TURN_COST,
)
"""All that decides what a mesh becomes."""
_R2 = (0.7548776662466927, 0.5698402909980532)
"""1 / p and 1 / p^2 of the plastic number p."""


@dataclass(frozen=True)
class Corners:
    """Triangles of `F` faces, a row per corner (`C` = 3 F), as GL draws them."""

    vertex_C3: np.ndarray
    """Float32 positions."""
    normal_C3: np.ndarray
    """Float32 unit normals."""
    texcoord_C2: np.ndarray | None
    """Float32; None for a mesh without."""

    @property
    def triangle_F33(self) -> np.ndarray:
        """Positions, float64 `[F, corner, axis]`."""
        return self.vertex_C3.reshape(-1, 3, 3).astype(np.float64)


def simplify(mesh: Corners) -> Corners:
    """Return the smallest of `LEVELS` that keeps the surface's directions, the mesh itself where none does."""
    old_F33 = mesh.triangle_F33
    for level in LEVELS:
        simple_F33 = _collapse(old_F33, max(LEAST_FACES, int(level * len(old_F33))))
        if turn(old_F33, simple_F33) <= MAX_TURN:
            return dress(mesh, simple_F33)
    return mesh


def turn(old_F33: np.ndarray, new_F33: np.ndarray) -> float:
    """Mean of 1 - cos between each old triangle's direction and that of the new one under its middle, by area."""
    normal_F3, area_F = directions(old_F33)
    face_F, _ = nearest(old_F33.mean(axis=1), normal_F3, new_F33)
    cosine_F = (normal_F3 * directions(new_F33)[0][face_F]).sum(axis=1)
    return float(np.average(1.0 - cosine_F, weights=area_F + 1e-30))


def dress(mesh: Corners, simple_F33: np.ndarray) -> Corners:
    """Give new triangles the normals and texture coordinates of the old surface under their corners."""
    middle_F13 = simple_F33.mean(axis=1, keepdims=True)
    point_C3 = (simple_F33 + INSET * (middle_F13 - simple_F33)).reshape(-1, 3)
    normal_F3, _ = directions(simple_F33)
    face_C, weight_C3 = nearest(point_C3, np.repeat(normal_F3, 3, axis=0), mesh.triangle_F33)

    def looked_up(values: np.ndarray) -> np.ndarray:
        of_faces = values.reshape(-1, 3, values.shape[1])
        return np.einsum("cn,cnk->ck", weight_C3, of_faces[face_C])

    normal_C3 = looked_up(mesh.normal_C3)
    normal_C3 /= np.linalg.norm(normal_C3, axis=1, keepdims=True) + 1e-12
    return Corners(
        vertex_C3=simple_F33.reshape(-1, 3).astype(np.float32),
        normal_C3=normal_C3.astype(np.float32),
        texcoord_C2=None if mesh.texcoord_C2 is None else looked_up(mesh.texcoord_C2).astype(np.float32),
    )


def directions(triangle_F33: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return unit normals `[F, 3]` (zero of a triangle without area) and areas `[F]`."""
    first_F3, second_F3, third_F3 = triangle_F33.swapaxes(0, 1)
    cross_F3 = np.cross(second_F3 - first_F3, third_F3 - first_F3)
    twice_F = np.linalg.norm(cross_F3, axis=1)
    return cross_F3 / np.maximum(twice_F, 1e-30)[:, None], twice_F / 2


def nearest(point_C3: np.ndarray, normal_C3: np.ndarray, triangle_F33: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the triangle under each point, int `[C]`, and the point's weights of its corners `[C, 3]`.

    Of the triangles near a point the nearest is taken, where those that do not face the way of `normal_C3`, as the
    other side of a thin wall, count as farther away. Weights are barycentric, clamped to the triangle.
    """
    from scipy.spatial import cKDTree

    sample_S3, face_S = spread(triangle_F33)
    num_near = min(NUM_NEAR, len(sample_S3))
    near_CK = face_S[cKDTree(sample_S3).query(point_C3, k=num_near)[1].reshape(len(point_C3), num_near)]
    direction_F3, _ = directions(triangle_F33)
    best_C = np.full(len(point_C3), np.inf)
    face_C = np.zeros(len(point_C3), dtype=np.int64)
    weight_C3 = np.zeros((len(point_C3), 3))
    extent = np.ptp(triangle_F33.reshape(-1, 3), axis=0).max()
    for candidate_C in near_CK.T:
        weights_C3 = _weights(point_C3, triangle_F33[candidate_C])
        image_C3 = np.einsum("cn,cnk->ck", weights_C3, triangle_F33[candidate_C])
        turned_C = 1.0 - (direction_F3[candidate_C] * normal_C3).sum(axis=1)
        cost_C = ((image_C3 - point_C3) ** 2).sum(axis=1) + (TURN_COST * extent) ** 2 * turned_C
        closer_C = cost_C < best_C
        best_C[closer_C], face_C[closer_C] = cost_C[closer_C], candidate_C[closer_C]
        weight_C3[closer_C] = weights_C3[closer_C]
    return face_C, weight_C3


def spread(triangle_F33: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points spread evenly over a surface, every triangle's middle among them, and the triangle of each.

    By their middles alone large triangles would not be found from their corners. Within a triangle the points follow
    the R2 sequence (Roberts 2018, "The Unreasonable Effectiveness of Quasirandom Sequences").
    """
    area_F = directions(triangle_F33)[1]
    share_F = area_F / max(area_F.sum(), 1e-30)
    face_S = np.repeat(np.arange(len(area_F)), np.round(NUM_SAMPLES * len(area_F) * share_F).astype(np.int64))
    second_S, third_S = np.outer(_R2, np.arange(len(face_S))) % 1.0
    outside_S = second_S + third_S > 1.0
    second_S, third_S = np.where(outside_S, 1.0 - second_S, second_S), np.where(outside_S, 1.0 - third_S, third_S)
    weight_S3 = np.column_stack([1.0 - second_S - third_S, second_S, third_S])
    sample_S3 = np.einsum("sn,snk->sk", weight_S3, triangle_F33[face_S])
    return np.concatenate([triangle_F33.mean(axis=1), sample_S3]), np.concatenate([np.arange(len(area_F)), face_S])


def _weights(point_C3: np.ndarray, triangle_C33: np.ndarray) -> np.ndarray:
    """Barycentric coordinates of the points' feet in their triangles, clamped to these."""
    origin_C3 = triangle_C33[:, 0]
    side_C3, edge_C3, to_C3 = triangle_C33[:, 1] - origin_C3, triangle_C33[:, 2] - origin_C3, point_C3 - origin_C3
    ss, se, ee = (side_C3**2).sum(axis=1), (side_C3 * edge_C3).sum(axis=1), (edge_C3**2).sum(axis=1)
    ts, te = (to_C3 * side_C3).sum(axis=1), (to_C3 * edge_C3).sum(axis=1)
    scale = ss * ee - se * se
    scale[scale == 0] = 1.0
    second, third = (ee * ts - se * te) / scale, (ss * te - se * ts) / scale
    weight_C3 = np.clip(np.column_stack([1.0 - second - third, second, third]), 0.0, 1.0)
    return weight_C3 / np.maximum(weight_C3.sum(axis=1, keepdims=True), 1e-12)


def _collapse(triangle_F33: np.ndarray, num_faces: int) -> np.ndarray:
    """At most `num_faces` triangles where the shape allows, and the parts that would shrink or grow as they are.

    Corners at one place are one vertex.
    """
    import fast_simplification

    point_V3, vertex_C = np.unique(triangle_F33.reshape(-1, 3), axis=0, return_inverse=True)
    face_F3 = vertex_C.reshape(-1, 3).astype(np.int32)
    flat_F = (face_F3 == np.roll(face_F3, 1, axis=1)).any(axis=1)
    face_F3 = np.ascontiguousarray(face_F3[~flat_F])
    _, _, collapses = fast_simplification.simplify(
        point_V3, face_F3, target_count=min(num_faces, len(face_F3)), agg=AGGRESSIVENESS, return_collapses=True
    )
    new_point_U3, new_face_G3, new_of_V = fast_simplification.replay_simplification(point_V3, face_F3, collapses)
    part_V = _parts(face_F3, len(point_V3))
    part_U = np.zeros(len(new_point_U3), dtype=part_V.dtype)
    part_U[new_of_V] = part_V
    old_F33, new_G33 = point_V3[face_F3], np.asarray(new_point_U3, dtype=np.float64)[new_face_G3]
    part_F, part_G = part_V[face_F3[:, 0]], part_U[new_face_G3[:, 0]]
    old_P, new_P = (
        np.bincount(part, directions(faces)[1], part_V.max() + 1)
        for faces, part in ((old_F33, part_F), (new_G33, part_G))
    )
    stays_P = (old_P > LEAST_PART * old_P.sum()) & (np.abs(new_P - old_P) > MAX_PART_CHANGE * old_P)
    simple_F33 = np.concatenate([new_G33[~stays_P[part_G]], old_F33[stays_P[part_F]]])
    return simple_F33[directions(simple_F33)[1] > 0]


def _parts(face_F3: np.ndarray, num_vertices: int) -> np.ndarray:
    """Part of each vertex: those joined by edges have one number."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    start_E, end_E = face_F3[:, :2].ravel(), face_F3[:, 1:].ravel()
    edges = coo_matrix((np.ones(len(start_E)), (start_E, end_E)), shape=(num_vertices, num_vertices))
    return connected_components(edges, directed=False)[1]


logger = logging.getLogger(__name__)


DRAWN = {
    "mesh_vert": "vert",
    "mesh_normal": "normal",
    "mesh_texcoord": "texcoord",
    **dict.fromkeys(("mesh_face", "mesh_facenormal", "mesh_facetexcoord"), "face"),
}
"""Arrays that GL draws a mesh from -> what a row is of."""


def mesh_hash(model: mujoco.MjModel, mesh: int, simple: Path | None) -> str:
    """Return a hash of what decides `drawn_triangles`."""
    hashes = []
    for name, item in DRAWN.items():
        first, count = getattr(model, f"mesh_{item}adr")[mesh], getattr(model, f"mesh_{item}num")[mesh]
        hashes.append(content_hash(getattr(model, name)[max(first, 0) :][:count].data))
    textured = bool(model.mesh_texcoordadr[mesh] >= 0)
    return content_hash(repr((hashes, textured, SETTINGS if is_simplified(model, mesh, simple) else None)).encode())


def is_simplified(model: mujoco.MjModel, mesh: int, simple: Path | None) -> bool:
    """Whether a mesh is drawn with fewer triangles where `simple` is the folder of these."""
    return simple is not None and bool(model.mesh_facenum[mesh] >= MIN_FACES)


def drawn_triangles(model: mujoco.MjModel, mesh: int, simple: Path | None = None) -> Corners:
    """Return the triangles of a mesh as they are drawn.

    Args:
        model: compiled model.
        mesh: its id.
        simple: folder of simplified meshes, of which a large mesh's is drawn; what is missing there is made now (a
            second per mesh) and kept.
    """
    corners = mesh_corners(model, mesh)
    return _kept(corners, simple) if simple and is_simplified(model, mesh, simple) else corners


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
    with suppress(FileNotFoundError):  # also of what is damaged
        return _unpack(read_hashed(file))
    with locked(root / "simplifying.lock"):
        with suppress(FileNotFoundError):
            return _unpack(read_hashed(file))  # another worker has made it meanwhile
        logger.info("simplifying a mesh of %d triangles (once per machine)", len(mesh.vertex_C3) // 3)
        simple, stream = simplify(mesh), io.BytesIO()
        np.savez(stream, **{name: part for name, part in asdict(simple).items() if part is not None})
        write_hashed(file, stream.getvalue())
        return simple


def _unpack(content: bytes) -> Corners:
    with np.load(io.BytesIO(content), allow_pickle=False) as parts:
        return Corners(parts["vertex_C3"], parts["normal_C3"], parts.get("texcoord_C2"))
