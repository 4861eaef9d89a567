"""GL display lists of MuJoCo's meshes: other triangles in their place, and meshes drawn in one pass only.

`mjr_render` draws every geometry of a scene in every pass, for each mesh the same GL display list: first all of them
into the mirror, then all of them again. Here a mesh may get another list that calls its own by an offset from GL's list
base, and the last geometry of the scene is a list that moves the base. So the same call draws the mesh in one pass
and, where no list has the number, nothing in the other.
"""

from __future__ import annotations

import mujoco
import numpy as np

from vla_gym.adapters.mujoco.sight import OPAQUE, Seen
from vla_gym.adapters.mujoco.simple_meshes import Corners, directions

SMOOTH = 0.8
"""Least cosine between a corner's normal and its triangle's for which MuJoCo takes the corner's, in meshes without
texture coordinates (render_context.c:mjr_uploadMesh)."""


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
    """Return the normals that MuJoCo would draw with, `[C, 3]`: flat at sharp edges of a mesh without texture."""
    if corners.texcoord_C2 is not None:
        return corners.normal_C3
    flat_C3 = np.repeat(directions(corners.triangle_F33)[0], 3, axis=0)
    smooth_C = (flat_C3 * corners.normal_C3).sum(axis=1) >= SMOOTH
    return np.where(smooth_C[:, None], corners.normal_C3, flat_C3).astype(np.float32)


class PassLists:
    """Display lists of one model's meshes in the current GL context.

    Args:
        model: its meshes are those of `resources`.
        resources: MuJoCo's own lists.

    Block `n` of the names has one per mesh: 0 and 2 stay empty, 1 draws the mesh. With the base at block 0 offset i
    draws nothing and offset N + i mesh i (the mirror's pass); at block 1 it is the other way round.
    """

    def __init__(self, model: mujoco.MjModel, resources: mujoco.MjrContext) -> None:
        from OpenGL import GL  # reads PYOPENGL_PLATFORM when imported

        self._gl, self._first_mesh, self._num_meshes = GL, resources.baseMesh, model.nmesh
        self._mesh_G = np.where(model.geom_type == mujoco.mjtGeom.mjGEOM_MESH, model.geom_dataid, -1)
        self._base = GL.glGenLists(3 * model.nmesh)
        self._calls = GL.glGenLists(2 * model.nmesh + 1)
        self._turn = self._calls + 2 * model.nmesh
        for mesh in range(model.nmesh):
            self._define(self._base + model.nmesh + mesh, GL.glCallList, self._first_mesh + 2 * mesh)
        for offset in range(2 * model.nmesh):
            called = np.array([offset], dtype=np.uint32)
            self._define(self._calls + offset, GL.glCallLists, 1, GL.GL_UNSIGNED_INT, called)
        self._define(self._turn, GL.glListBase, self._base + model.nmesh)

    def _define(self, name: int, command: object, *arguments: object) -> None:
        self._gl.glNewList(name, self._gl.GL_COMPILE)
        command(*arguments)  # type: ignore[operator]
        self._gl.glEndList()

    def aim(self, scene: mujoco.MjvScene, seen: Seen) -> None:
        """Let each opaque mesh of a fresh scene be drawn in the passes in which it is seen."""
        if not seen.reflects:
            return
        for index in range(scene.ngeom):
            geom = scene.geoms[index]
            if geom.objtype != mujoco.mjtObj.mjOBJ_GEOM or geom.rgba[3] < OPAQUE:
                continue
            mesh = int(self._mesh_G[geom.objid])
            direct, mirrored = seen.direct_G[geom.objid], seen.mirrored_G[geom.objid]
            if mesh >= 0 and direct != mirrored:
                geom.dataid = self._calls + mesh + (0 if direct else self._num_meshes) - self._first_mesh
        self._append_turn(scene)

    def _append_turn(self, scene: mujoco.MjvScene) -> None:
        last = scene.geoms[scene.ngeom]
        opaque = np.ones(4, dtype=np.float32)
        mujoco.mjv_initGeom(last, mujoco.mjtGeom.mjGEOM_MESH, np.ones(3), np.zeros(3), np.eye(3).ravel(), opaque)
        last.dataid = self._turn - self._first_mesh
        scene.ngeom += 1

    def begin(self, *, reflects: bool) -> None:
        """Call before `mjr_render` of a scene that was aimed."""
        self._gl.glListBase(self._base if reflects else self._base + self._num_meshes)

    def close(self) -> None:
        """Free the lists."""
        self._gl.glDeleteLists(self._base, 3 * self._num_meshes)
        self._gl.glDeleteLists(self._calls, 2 * self._num_meshes + 1)
