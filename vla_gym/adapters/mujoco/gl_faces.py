"""Large meshes drawn from index buffers, each picture with the triangles that can be seen in it.

MuJoCo draws a mesh by one display list, always whole. It draws skins from index buffers of any length, but in the
world's frame. So a mesh is drawn as a skin of its vertices between two geometries that are display lists: one leaves
its frame on GL's stack of matrices, the other takes it off. Frame, material and vertices are those of the mesh, and so
are the bits of the picture.

Skins belong to a model. A `carrier`, which has as many as there are geometries to draw so, lends its GL resources
and its scenes.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

import mujoco
import numpy as np

from vla_gym.adapters.mujoco.covering import Lens, Samples, Sieve
from vla_gym.adapters.mujoco.gl_lists import PassLists, drawn_normals, new_lists
from vla_gym.adapters.mujoco.scene_rows import scene_rows
from vla_gym.adapters.mujoco.sight import OPAQUE, Seen
from vla_gym.adapters.mujoco.simple_meshes import Corners
from vla_gym.adapters.mujoco.simple_store import mesh_corners
from vla_gym.system.cache import content_hash

MIN_FACES = 256
"""Smaller meshes are drawn whole."""
SOFTWARE = "llvmpipe"
"""GL renderer that draws by the processor; a GPU draws everything sooner than triangles are chosen."""
KNOWN_BITS = platform.machine() == "x86_64"
"""Whether `drawn_normals` has the bits of MuJoCo's wheels, which elsewhere may be compiled with fused products."""
TEXCOORDS = 'texcoord="0 0 0 0 0 0"'
LENT = (
    *("basePlane", "baseMesh", "baseHField", "baseBuiltin", "ntexture", "texture", "textureType", "mat_texid"),
    *("mat_texuniform", "mat_texrepeat", "shadowFBO", "shadowTex", "shadowSize", "shadowClip", "shadowScale"),
    *("lineWidth", "fogStart", "fogEnd", "fogRGBA", "offFBO", "currentBuffer"),
)
"""What `mjr_render` reads of its resources, the skins aside."""


class SiftedMeshes:
    """Geometries of one model that are drawn with those triangles alone that may cover a sample.

    Args:
        meshes: geometry id -> triangles, as `siftable` returns them.
        num_geoms: geometries of the model.
        resources: its GL resources in the current GL context.
        passes: its lists, where the model has a mirror.
        exact: whether pictures must be those of all triangles, bit for bit. Then meshes that a mirror shows, or that
            the picture's edge cuts, are drawn whole.
    """

    def __init__(
        self,
        meshes: Mapping[int, Corners],
        num_geoms: int,
        resources: mujoco.MjrContext,
        passes: PassLists | None,
        *,
        exact: bool = True,
    ) -> None:
        from OpenGL import GL  # reads PYOPENGL_PLATFORM when imported
        from OpenGL.raw.GL.VERSION import GL_1_5

        self._gl, self._raw, self._exact = GL, GL_1_5, exact
        self.carrier = _carrier([corners.texcoord_C2 is not None for corners in meshes.values()])
        self.resources = mujoco.MjrContext(self.carrier, mujoco.mjtFontScale.mjFONTSCALE_50)
        self._own = {name: np.copy(getattr(self.resources, name)) for name in LENT}
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, resources)
        self._samples = _samples(resources.offSamples)
        for name in LENT:
            _assign(self.resources, name, getattr(resources, name))
        self._skin_G = np.full(num_geoms, -1)
        self._skin_G[list(meshes)] = np.arange(len(meshes))
        self._meshes: list[IndexedMesh] = []
        """Per skin."""
        for skin, corners in enumerate(meshes.values()):
            self._upload(skin, corners)
        self._lists: list[int] = []
        self._nothing = 0
        self._frame = self._list(GL.glPushMatrix), self._list(GL.glPopMatrix)
        """The lists before and after a skin."""
        self._direct_frame = self._condition(passes) if passes else self._frame
        """Those of a skin that the mirror does not show."""

    def new_scene(self, max_geoms: int) -> mujoco.MjvScene:
        """Return an empty scene that `aim` takes."""
        scene = mujoco.MjvScene(self.carrier, max_geoms)
        scene.nskin = 0  # MuJoCo would upload the carrier's vertices at each picture
        return scene

    def aim(self, scene: mujoco.MjvScene, seen: Seen, size: int) -> None:
        """Let a fresh scene draw meshes by skins, until the next `aim`.

        Args:
            scene: updated; of one fixed camera.
            seen: by that camera.
            size: of the picture, pixels.
        """
        every_row = scene_rows(scene)
        rows = every_row[: scene.ngeom]
        is_geom_N = rows["objtype"] == mujoco.mjtObj.mjOBJ_GEOM
        geom_N = np.where(is_geom_N, rows["objid"], 0)
        skin_N = np.where(is_geom_N & (rows["rgba"][:, 3] >= OPAQUE), self._skin_G[geom_N], -1)
        mirrored_N = is_geom_N & seen.mirrored_G[geom_N]
        if self._exact or seen.mirror is None:
            skin_N[mirrored_N] = -1
        if scene.ngeom + 2 * (skin_N >= 0).sum() > len(every_row):
            return
        lens = Lens.of(scene, size, self._samples)
        behind = lens.mirrored(seen.mirror) if seen.mirror else lens
        drawn, copies_N = [], np.ones(len(rows), dtype=np.int64)
        for row in np.flatnonzero(skin_N >= 0):
            skin = int(skin_N[row])
            lenses = [lens, behind] if mirrored_N[row] else [lens]
            corner_F3 = self._meshes[skin].covering(rows["mat"][row], rows["pos"][row], lenses, exact=self._exact)
            if corner_F3 is None:
                continue
            copies_N[row] = 3 if len(corner_F3) else 0
            if len(corner_F3):
                drawn.append((skin, corner_F3))
        new_rows = np.repeat(rows, copies_N)
        middle = (np.cumsum(copies_N) - 2)[copies_N == 3]
        new_rows["type"][middle], new_rows["objid"][middle] = mujoco.mjtGeom.mjGEOM_SKIN, [skin for skin, _ in drawn]
        shown = np.repeat(mirrored_N, copies_N)[middle]
        for neighbour, both, direct in zip((middle - 1, middle + 1), self._frame, self._direct_frame, strict=True):
            new_rows["dataid"][neighbour] = np.where(shown, both, direct) - self.resources.baseMesh
            new_rows["matid"][neighbour] = -1
        every_row[: len(new_rows)], scene.ngeom = new_rows, len(new_rows)
        for skin, corner_F3 in drawn:
            self._fill(
                self._gl.GL_ELEMENT_ARRAY_BUFFER, self.resources.skinfaceVBO[skin], corner_F3, self._gl.GL_STREAM_DRAW
            )
            scene.skinfacenum[skin] = len(corner_F3)
        self._gl.glBindBuffer(self._gl.GL_ELEMENT_ARRAY_BUFFER, 0)

    def close(self) -> None:
        """Free the GL resources."""
        for name, value in self._own.items():
            _assign(self.resources, name, value)
        self.resources.free()
        for gl_list in self._lists:
            self._gl.glDeleteLists(gl_list, 1)
        if self._nothing:
            self._gl.glDeleteQueries(1, [self._nothing])

    def _upload(self, skin: int, corners: Corners) -> None:
        mesh = indexed(corners)
        buffers = [self.resources.skinvertVBO, self.resources.skinnormalVBO, self.resources.skintexcoordVBO]
        parts = np.split(mesh.row_RK, np.arange(3, mesh.row_RK.shape[1], 3), axis=1)
        for buffer, values in zip(buffers, parts, strict=False):
            self._fill(self._gl.GL_ARRAY_BUFFER, buffer[skin], values, self._gl.GL_STATIC_DRAW)
        self._gl.glBindBuffer(self._gl.GL_ARRAY_BUFFER, 0)
        self._meshes.append(mesh)

    def _fill(self, target: int, buffer: int, values: np.ndarray, use: int) -> None:
        content = np.ascontiguousarray(values)
        # PyOpenGL's own calls take ten times as long, which tells with some fifty a picture.
        self._raw.glBindBuffer(target, int(buffer))
        self._raw.glBufferData(target, content.nbytes, ctypes.c_void_p(content.ctypes.data), use)

    def _condition(self, passes: PassLists) -> tuple[int, int]:
        """The frame of a skin that is drawn, in the mirror's pass, on a condition that does not hold."""
        gl = self._gl
        self._nothing = int(gl.glGenQueries(1)[0])
        gl.glBeginQuery(gl.GL_SAMPLES_PASSED, self._nothing)
        gl.glEndQuery(gl.GL_SAMPLES_PASSED)
        skip = self._list(gl.glBeginConditionalRender, self._nothing, gl.GL_QUERY_WAIT)
        end = self._list(gl.glEndConditionalRender)
        return passes.in_turn(skip, self._frame[0]), passes.in_turn(end, self._frame[1])

    def _list(self, command: Callable[..., object], *arguments: object) -> int:
        gl_list = new_lists(1, self.resources)
        self._gl.glNewList(gl_list, self._gl.GL_COMPILE)
        command(*arguments)
        self._gl.glEndList()
        self._lists.append(gl_list)
        return gl_list


def siftable(model: mujoco.MjModel, simple: Mapping[int, Corners], hidden_groups: Sequence[int]) -> dict[int, Corners]:
    """Return geometry id -> triangles as MuJoCo draws them, for drawn meshes that are worth it.

    Args:
        model: compiled model.
        simple: mesh id -> triangles drawn in its place.
        hidden_groups: geom groups that are not drawn.
    """
    drawn = (model.geom_type == mujoco.mjtGeom.mjGEOM_MESH) & ~np.isin(model.geom_group, hidden_groups)
    found = {}
    for geom in np.flatnonzero(drawn):
        mesh = int(model.geom_dataid[geom])
        corners = simple.get(mesh) or mesh_corners(model, mesh)
        if len(corners.vertex_C3) >= 3 * MIN_FACES and (corners.texcoord_C2 is not None or KNOWN_BITS):
            found[int(geom)] = replace(corners, normal_C3=drawn_normals(corners))
    return found


@dataclass(frozen=True, eq=False)
class IndexedMesh:
    """Triangles whose corners are numbers of rows."""

    row_RK: np.ndarray
    """float32: position, normal and, where there is one, texture coordinate; none twice. K is 6 or 8."""
    corner_F3: np.ndarray
    """uint32 rows of `row_RK`."""
    sieve: Sieve

    def covering(
        self, frame_33: np.ndarray, origin_3: np.ndarray, lenses: Sequence[Lens], *, exact: bool
    ) -> np.ndarray | None:
        """Return those of `corner_F3` that may cover a sample through any of the lenses; see `Sieve.covering`."""
        found: list[np.ndarray] = []
        for lens in lenses:
            face_F = self.sieve.covering(frame_33, origin_3, lens, exact=exact)
            if face_F is None:
                return None
            found.append(face_F)
        corner_F3: np.ndarray = self.corner_F3[functools.reduce(np.union1d, found)]
        return corner_F3


_INDEXED: WeakValueDictionary[tuple[int, str], IndexedMesh] = WeakValueDictionary()
"""Those in use: the robot, and most objects, are the same in all tasks that a process has loaded."""


def indexed(corners: Corners) -> IndexedMesh:
    """Return triangles with each distinct corner once; equal ones that are in use anywhere are the same object."""
    columns = [corners.vertex_C3, corners.normal_C3]
    if corners.texcoord_C2 is not None:
        columns.append(corners.texcoord_C2)
    rows = np.concatenate(columns, axis=1, dtype=np.float32)
    key = rows.shape[1], content_hash(rows.data)
    if (mesh := _INDEXED.get(key)) is None:
        row_RK, corner_C = _distinct(rows)
        vertex_V3, vertex_C = _distinct(corners.vertex_C3)
        sieve = Sieve(vertex_V3, vertex_C.reshape(-1, 3).astype(np.uint32))
        _INDEXED[key] = mesh = IndexedMesh(row_RK, corner_C.reshape(-1, 3).astype(np.uint32), sieve)
    return mesh


def in_software() -> bool:
    """Whether the current GL context draws by the processor."""
    from OpenGL import GL

    return SOFTWARE.encode() in GL.glGetString(GL.GL_RENDERER)


def _distinct(rows_RK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row once, in the order of its first, and where it is for every row."""
    rows = np.ascontiguousarray(rows_RK, dtype=np.float32)
    keys = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).ravel()
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rows[first[order]], rank[place.ravel()]


def _samples(num_samples: int) -> Samples:
    """How the bound framebuffer samples its pixels."""
    from OpenGL import GL

    points = [GL.glGetMultisamplefv(GL.GL_SAMPLE_POSITION, sample) for sample in range(num_samples)]
    step = 2.0 ** -int(GL.glGetIntegerv(GL.GL_SUBPIXEL_BITS))
    return Samples(np.array(points or [[0.5, 0.5]], dtype=np.float64), step)


def _assign(resources: mujoco.MjrContext, name: str, value: np.ndarray | float) -> None:
    if np.ndim(value):
        getattr(resources, name)[:] = value
    else:
        setattr(resources, name, type(getattr(resources, name))(value))


def _carrier(textured: Sequence[bool]) -> mujoco.MjModel:
    """A model with a skin per entry and nothing to see."""
    bone = '<bone body="bone" bindpos="0 0 0" bindquat="1 0 0 0" vertid="0 1 2" vertweight="1 1 1"/>'
    shape = 'vertex="0 0 0 1 0 0 0 1 0" face="0 1 2"'
    skins = [f"<skin {shape} {TEXCOORDS if each else ''}>{bone}</skin>" for each in textured]
    return mujoco.MjModel.from_xml_string(
        f"""<mujoco><visual><global offwidth="1" offheight="1"/><quality shadowsize="0" offsamples="0"/></visual>
        <deformable>{"".join(skins)}</deformable><worldbody><body name="bone"/></worldbody></mujoco>"""
    )
