"""GL display lists of MuJoCo's meshes: other triangles in their place, and meshes drawn in one pass only.

`mjr_render` draws every geometry of a scene in every pass, for each mesh the same GL display list: first all of them
into the mirror, then all of them again. Here a mesh may get another list that calls its own by an offset from GL's list
base, and the last geometry of the scene is a list that moves the base. So the same call draws the mesh in one pass
and, where no list has the number, nothing in the other.
"""

from __future__ import annotations

from collections.abc import Callable

import mujoco
import numpy as np

from vla_gym.adapters.mujoco.scene_rows import scene_rows
from vla_gym.adapters.mujoco.sight import OPAQUE, Seen
from vla_gym.adapters.mujoco.simple_meshes import Corners

SMOOTH = 0.8
"""Least cosine between a corner's normal and its triangle's for which MuJoCo takes the corner's, in meshes without
texture coordinates (render_context.c:mjr_uploadMesh)."""
MAX_OTHERS = 2
"""Calls of `PassLists.in_turn`."""


def draw_instead(resources: mujoco.MjrContext, mesh: int, corners: Corners) -> None:
    """Let MuJoCo's list of a mesh draw other triangles, by MuJoCo's rules; its context must be current."""
    from OpenGL import GL  # reads PYOPENGL_PLATFORM when imported

    arrays = [
        (GL.GL_VERTEX_ARRAY, GL.glVertexPointer, corners.vertex_C3),
        (GL.GL_NORMAL_ARRAY, GL.glNormalPointer, drawn_normals(corners)),
    ]
    if corners.texcoord_C2 is not None:
        arrays.append((GL.GL_TEXTURE_COORD_ARRAY, GL.glTexCoordPointer, corners.texcoord_C2))
    for state, point, values in arrays:
        GL.glEnableClientState(state)
        size = () if state == GL.GL_NORMAL_ARRAY else (values.shape[1],)
        point(*size, GL.GL_FLOAT, 0, np.ascontiguousarray(values, dtype=np.float32))
    GL.glNewList(resources.baseMesh + 2 * mesh, GL.GL_COMPILE)
    GL.glDrawArrays(GL.GL_TRIANGLES, 0, len(corners.vertex_C3))
    GL.glEndList()
    for state, _, _ in arrays:
        GL.glDisableClientState(state)


def drawn_normals(corners: Corners) -> np.ndarray:
    """Return the normals that MuJoCo draws with, `[C, 3]`: flat at sharp edges of a mesh without texture coordinates.

    They are MuJoCo's to the bit (render_util.c:mjr_makeNormal) where compilers do not fuse products with sums.
    """
    if corners.texcoord_C2 is not None:
        return corners.normal_C3
    first_F3, second_F3, third_F3 = corners.vertex_C3.astype(np.float32).reshape(-1, 3, 3).swapaxes(0, 1)
    (ax, ay, az), (bx, by, bz) = (second_F3 - first_F3).T, (third_F3 - first_F3).T
    x, y, z = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
    length_F = np.sqrt(x * x + y * y + z * z)
    tiny_F = length_F < np.float32(1e-10)
    scale_F = np.float32(1) / np.where(tiny_F, np.float32(1), length_F)
    flat_F3 = np.where(tiny_F[:, None], np.array([0, 0, 1], np.float32), np.stack([x, y, z], axis=1) * scale_F[:, None])
    flat_C3 = np.repeat(flat_F3, 3, axis=0)
    (ax, ay, az), (bx, by, bz) = corners.normal_C3.astype(np.float32).T, flat_C3.T
    sharp_C = (ax * bx + ay * by + az * bz).astype(np.float64) < SMOOTH
    return np.where(sharp_C[:, None], flat_C3, corners.normal_C3).astype(np.float32)


def new_lists(count: int, resources: mujoco.MjrContext) -> int:
    """Return the first of `count` new lists that a geometry can name.

    Geometries count lists from MuJoCo's first mesh (`dataid`), and `mjr_render` draws none below it. GL may give any
    free numbers: Mesa 25 gives the lowest. `glGenLists` of enough to get above them makes an empty list for each, and
    where blocks come after all that were ever used, as of Mesa 22, several times as many from scene to scene. So
    these are the first free numbers that are high enough, made by `glNewList`.
    """
    from OpenGL import GL  # reads PYOPENGL_PLATFORM when imported

    first = name = resources.baseMesh
    while name < first + count:
        if GL.glIsList(name):
            first = name + 1
        name += 1
    for name in range(first, first + count):
        GL.glNewList(name, GL.GL_COMPILE)
        GL.glEndList()
    return int(first)


class PassLists:
    """Display lists of one model's meshes in the current GL context.

    Args:
        model: its meshes are those of `resources`.
        resources: MuJoCo's own lists.

    Block `n` of the names has one per mesh, `N` in all: 0 and 2 stay empty, 1 draws the mesh. With the base at block 0
    offset i draws nothing and offset N + i mesh i (the mirror's pass); at block 1 it is the other way round. Blocks 3
    and 4 hold what `in_turn` is given for either pass.
    """

    def __init__(self, model: mujoco.MjModel, resources: mujoco.MjrContext) -> None:
        from OpenGL import GL  # reads PYOPENGL_PLATFORM when imported

        self._gl, self._first_mesh = GL, resources.baseMesh
        self._block = max(model.nmesh, MAX_OTHERS)
        self._mesh_G = np.where(model.geom_type == mujoco.mjtGeom.mjGEOM_MESH, model.geom_dataid, -1)
        self._num_names, self._num_calls = 4 * self._block + MAX_OTHERS, 2 * self._block + 1 + MAX_OTHERS
        self._base, self._calls = GL.glGenLists(self._num_names), new_lists(self._num_calls, resources)
        self._turn, self._num_others = self._calls + 2 * self._block, 0
        for mesh in range(model.nmesh):
            self._define(self._base + self._block + mesh, GL.glCallList, self._first_mesh + 2 * mesh)
        for offset in range(2 * self._block):
            self._define(self._calls + offset, GL.glCallLists, 1, GL.GL_UNSIGNED_INT, np.array([offset], np.uint32))
        self._define(self._turn, GL.glListBase, self._base + self._block)

    def in_turn(self, mirrored: int, direct: int) -> int:
        """Return a list that calls one list in the mirror's pass, another in the pass thereafter."""
        offset, call = 3 * self._block + self._num_others, self._turn + 1 + self._num_others
        self._num_others += 1
        for base, gl_list in ((self._base, mirrored), (self._base + self._block, direct)):
            self._define(base + offset, self._gl.glCallList, gl_list)
        self._define(call, self._gl.glCallLists, 1, self._gl.GL_UNSIGNED_INT, np.array([offset], np.uint32))
        return call

    def _define(self, name: int, command: Callable[..., object], *arguments: object) -> None:
        self._gl.glNewList(name, self._gl.GL_COMPILE)
        command(*arguments)
        self._gl.glEndList()

    def aim(self, scene: mujoco.MjvScene, seen: Seen) -> None:
        """Let each opaque mesh of a fresh scene be drawn in the passes in which it is seen, until the next `aim`."""
        self._gl.glListBase(self._base if seen.reflects else self._base + self._block)
        if not seen.reflects:
            return
        rows = scene_rows(scene)[: scene.ngeom]
        solid_N = (rows["objtype"] == mujoco.mjtObj.mjOBJ_GEOM) & (rows["rgba"][:, 3] >= OPAQUE)
        geom_N = np.where(solid_N, rows["objid"], 0)
        mesh_N, direct_N = self._mesh_G[geom_N], seen.direct_G[geom_N]
        once_N = solid_N & (mesh_N >= 0) & (direct_N != seen.mirrored_G[geom_N])
        offset_N = mesh_N + np.where(direct_N, 0, self._block)
        rows["dataid"][once_N] = self._calls + offset_N[once_N] - self._first_mesh
        self._append_turn(scene)

    def _append_turn(self, scene: mujoco.MjvScene) -> None:
        last = scene.geoms[scene.ngeom]
        opaque = np.ones(4, dtype=np.float32)
        mujoco.mjv_initGeom(last, mujoco.mjtGeom.mjGEOM_MESH, np.ones(3), np.zeros(3), np.eye(3).ravel(), opaque)
        last.dataid = self._turn - self._first_mesh
        last.objtype, last.objid = mujoco.mjtObj.mjOBJ_UNKNOWN, -1
        scene.ngeom += 1

    def close(self) -> None:
        """Free the lists."""
        self._gl.glDeleteLists(self._base, self._num_names)
        self._gl.glDeleteLists(self._calls, self._num_calls)
