"""MuJoCo's meshes in GL: other triangles in their place, meshes drawn in one pass only, and index buffers.

`mjr_render` draws every geometry of a scene in every pass, for each mesh the same GL display list: first all of them
into the mirror, then all of them again. `PassLists` gives a mesh another list that calls its own by an offset from GL's
list base, and the last geometry of the scene is a list that moves the base. So the same call draws the mesh in one pass
and, where no list has the number, nothing in the other.

`SiftedMeshes` draws large meshes with the triangles that can be seen in an image. MuJoCo draws a mesh by one display
list, always whole. It draws skins from index buffers of any length, but in the world's frame. So a mesh is drawn as a
skin of its vertices between two geometries that are display lists: one leaves its frame on GL's stack of matrices, the
other takes it off. Frame, material and vertices are those of the mesh, and so are the bits of the image. Skins
belong to a model: a `carrier` with one for each geometry that is drawn so lends its GL resources and its scenes.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import mujoco
import numpy as np

from vla_gym.adapters.mujoco.simple_meshes import Corners, mesh_hash
from vla_gym.adapters.mujoco.visibility import OPAQUE, Lens, Samples, Seen, covering_faces

SMOOTH = 0.8
"""Least cosine between a corner's normal and its triangle's for which MuJoCo takes the corner's, in meshes without
texture coordinates (render_context.c:mjr_uploadMesh)."""
MAX_OTHERS = 2
"""Calls of `PassLists.in_turn`."""


def compile_list(name: int, command: Callable[..., object], *arguments: object) -> None:
    """Let a display list consist of one command; its context must be current."""
    from OpenGL import GL  # reads PYOPENGL_PLATFORM when imported

    GL.glNewList(name, GL.GL_COMPILE)
    command(*arguments)
    GL.glEndList()


def define_list(name: int, corners: Corners) -> None:
    """Let a display list draw triangles by MuJoCo's rules; its context must be current."""
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
    compile_list(name, GL.glDrawArrays, GL.GL_TRIANGLES, 0, len(corners.vertex_C3))
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


@dataclass(eq=False)
class SharedMesh:
    """Triangles in GL, the same for all scenes of a process that draw them; freed with the last of these."""

    display_list: int = 0
    """GL's number; 0 until a scene has one."""
    _indexed: IndexedMesh | None = None

    def adopt(self, name: int) -> None:
        """Own a display list."""
        self.display_list = name
        weakref.finalize(self, delete_lists, name, 1).atexit = False

    def indexed(self, corners: Callable[[], Corners]) -> IndexedMesh:
        """Return the triangles with each distinct corner once; `corners` reads them where that is not known."""
        if self._indexed is None:
            self._indexed = indexed(corners())
        return self._indexed


_SHARED: WeakValueDictionary[str, SharedMesh] = WeakValueDictionary()
"""Meshes in use: the robot, and most objects, are the same in all tasks that a process has loaded."""


def shared_meshes(model: mujoco.MjModel, hidden_groups: Sequence[int], simple: Path | None) -> dict[int, SharedMesh]:
    """Return mesh id -> mesh as all scenes of this process draw it, for the meshes of a model that are drawn.

    Args:
        model: compiled model.
        hidden_groups: geom groups that are not drawn.
        simple: folder of simplified meshes, to draw these.
    """
    drawn = (model.geom_type == mujoco.mjtGeom.mjGEOM_MESH) & ~np.isin(model.geom_group, hidden_groups)
    hashes = {int(mesh): mesh_hash(model, mesh, simple) for mesh in np.unique(model.geom_dataid[drawn])}
    return {mesh: _SHARED.setdefault(key, SharedMesh()) for mesh, key in hashes.items()}


def share_lists(
    resources: mujoco.MjrContext,
    meshes: Mapping[int, SharedMesh],
    corners: Callable[[int], Corners],
    own: Container[int],
) -> list[int]:
    """Let a scene's lists of meshes draw the shared ones.

    Args:
        resources: of the scene; its lists of meshes are no longer freed with it.
        meshes: mesh id -> mesh.
        corners: reads a mesh's triangles.
        own: meshes of which MuJoCo has made the list just now.

    Returns:
        The lists that remain the scene's own.
    """
    from OpenGL import GL

    lists = set(range(resources.baseMesh, resources.baseMesh + resources.rangeMesh))
    resources.rangeMesh = 0
    for mesh, shared in meshes.items():
        name = resources.baseMesh + 2 * mesh
        if mesh in own and not shared.display_list:
            shared.adopt(name)
            lists.remove(name)
            continue
        if not shared.display_list:
            shared.adopt(int(GL.glGenLists(1)))
            define_list(shared.display_list, corners(mesh))
        compile_list(name, GL.glCallList, shared.display_list)
    return sorted(lists)


def delete_lists(first: int, count: int) -> None:
    """Free display lists of the current GL context."""
    from OpenGL import GL

    GL.glDeleteLists(first, count)


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
            compile_list(self._base + self._block + mesh, GL.glCallList, self._first_mesh + 2 * mesh)
        for offset in range(2 * self._block):
            compile_list(self._calls + offset, GL.glCallLists, 1, GL.GL_UNSIGNED_INT, np.array([offset], np.uint32))
        compile_list(self._turn, GL.glListBase, self._base + self._block)

    def in_turn(self, mirrored: int, direct: int) -> int:
        """Return a list that calls one list in the mirror's pass, another in the pass thereafter."""
        offset, call = 3 * self._block + self._num_others, self._turn + 1 + self._num_others
        self._num_others += 1
        for base, gl_list in ((self._base, mirrored), (self._base + self._block, direct)):
            compile_list(base + offset, self._gl.glCallList, gl_list)
        compile_list(call, self._gl.glCallLists, 1, self._gl.GL_UNSIGNED_INT, np.array([offset], np.uint32))
        return call

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
        self._gl.glDeleteLists(self._base, self._num_names)
        self._gl.glDeleteLists(self._calls, self._num_calls)


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
"""Resources that `mjr_render` reads, the skins aside."""


class SiftedMeshes:
    """Geometries of one model that are drawn with those triangles alone that may cover a sample.

    Args:
        meshes: geometry id -> triangles, of the geometries that `siftable` returns.
        num_geoms: geometries of the model.
        resources: its GL resources in the current GL context.
        passes: its lists, where the model has a mirror.
        exact: whether images must be those of all triangles, bit for bit. Then meshes that a mirror shows, or that
            the image's edge cuts, are drawn whole.
    """

    def __init__(
        self,
        meshes: Mapping[int, IndexedMesh],
        num_geoms: int,
        resources: mujoco.MjrContext,
        passes: PassLists | None,
        *,
        exact: bool = True,
    ) -> None:
        from OpenGL import GL  # reads PYOPENGL_PLATFORM when imported
        from OpenGL.raw.GL.VERSION import GL_1_5

        self._gl, self._raw, self._exact = GL, GL_1_5, exact
        self.carrier = _carrier([mesh.row_RK.shape[1] > 6 for mesh in meshes.values()])
        self.resources = mujoco.MjrContext(self.carrier, mujoco.mjtFontScale.mjFONTSCALE_50)
        self._own = {name: np.copy(getattr(self.resources, name)) for name in LENT}
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, resources)
        self._samples = _samples(resources.offSamples)
        for name in LENT:
            _assign(self.resources, name, getattr(resources, name))
        self._skin_G = np.full(num_geoms, -1)
        self._skin_G[list(meshes)] = np.arange(len(meshes))
        self._meshes = list(meshes.values())
        """Per skin."""
        for skin, mesh in enumerate(self._meshes):
            self._upload(skin, mesh)
        self._lists: list[int] = []
        self._nothing = 0
        self._frame = self._list(GL.glPushMatrix), self._list(GL.glPopMatrix)
        """The lists before and after a skin."""
        self._direct_frame = self._condition(passes) if passes else self._frame
        """Return the triangles of a skin that the mirror does not show."""

    def new_scene(self, max_geoms: int) -> mujoco.MjvScene:
        """Return an empty scene that `aim` takes."""
        scene = mujoco.MjvScene(self.carrier, max_geoms)
        scene.nskin = 0  # MuJoCo would upload the carrier's vertices at each image
        return scene

    def aim(self, scene: mujoco.MjvScene, seen: Seen, size: int) -> None:
        """Let a fresh scene draw meshes by skins, until the next `aim`.

        Args:
            scene: updated; of one fixed camera.
            seen: by that camera.
            size: of the image, pixels.
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
        for name, value in self._own.items():
            _assign(self.resources, name, value)
        self.resources.free()
        for gl_list in self._lists:
            self._gl.glDeleteLists(gl_list, 1)
        if self._nothing:
            self._gl.glDeleteQueries(1, [self._nothing])

    def _upload(self, skin: int, mesh: IndexedMesh) -> None:
        buffers = [self.resources.skinvertVBO, self.resources.skinnormalVBO, self.resources.skintexcoordVBO]
        parts = np.split(mesh.row_RK, np.arange(3, mesh.row_RK.shape[1], 3), axis=1)
        for buffer, values in zip(buffers, parts, strict=False):
            self._fill(self._gl.GL_ARRAY_BUFFER, buffer[skin], values, self._gl.GL_STATIC_DRAW)
        self._gl.glBindBuffer(self._gl.GL_ARRAY_BUFFER, 0)

    def _fill(self, target: int, buffer: int, values: np.ndarray, use: int) -> None:
        content = np.ascontiguousarray(values)
        # PyOpenGL's own calls take ten times as long, which tells with some fifty an image.
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
        compile_list(gl_list, command, *arguments)
        self._lists.append(gl_list)
        return gl_list


def siftable(model: mujoco.MjModel, meshes: Container[int]) -> dict[int, int]:
    """Return geometry id -> mesh id for those of the drawn meshes that are worth it."""
    found = {}
    for geom in np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_MESH):
        mesh = int(model.geom_dataid[geom])
        known = model.mesh_texcoordadr[mesh] >= 0 or KNOWN_BITS
        if mesh in meshes and model.mesh_facenum[mesh] >= MIN_FACES and known:
            found[int(geom)] = mesh
    return found


@dataclass(frozen=True, eq=False)
class IndexedMesh:
    """Triangles whose corners are numbers of rows."""

    row_RK: np.ndarray
    """float32: position, normal and, where there is one, texture coordinate; none twice. K is 6 or 8."""
    corner_F3: np.ndarray
    """uint32 rows of `row_RK`."""
    mesh: tuple[np.ndarray, np.ndarray]
    """Positions and rows of them, as `covering_faces` takes them."""

    def covering(
        self, frame_33: np.ndarray, origin_3: np.ndarray, lenses: Sequence[Lens], *, exact: bool
    ) -> np.ndarray | None:
        """Return those of `corner_F3` that may cover a sample through any of the lenses; see `covering_faces`."""
        found: list[np.ndarray] = []
        for lens in lenses:
            face_F = covering_faces(self.mesh, frame_33, origin_3, lens, exact=exact)
            if face_F is None:
                return None
            found.append(face_F)
        return self.corner_F3[functools.reduce(np.union1d, found)]


def indexed(corners: Corners) -> IndexedMesh:
    """Return triangles with each distinct corner once, and the normals that MuJoCo draws with."""
    columns = [corners.vertex_C3, drawn_normals(corners)]
    if corners.texcoord_C2 is not None:
        columns.append(corners.texcoord_C2)
    row_RK, corner_C = _distinct(np.concatenate(columns, axis=1, dtype=np.float32))
    vertex_V3, vertex_C = _distinct(corners.vertex_C3)
    places = np.ascontiguousarray(vertex_V3), vertex_C.reshape(-1, 3).astype(np.uint32)
    return IndexedMesh(row_RK, corner_C.reshape(-1, 3).astype(np.uint32), places)


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


INTS = ("type", "dataid", "objtype", "objid", "category", "matid", "texcoord", "segid")
GEOM = np.dtype(
    [
        *((name, np.int32) for name in INTS),
        *(("size", np.float32, 3), ("pos", np.float32, 3), ("mat", np.float32, (3, 3)), ("rgba", np.float32, 4)),
        *((name, np.float32) for name in ("emission", "specular", "shininess", "reflectance")),
        ("label", "S100"),
        *(("camdist", np.float32), ("modelrbound", np.float32), ("transparent", np.uint8)),
    ],
    align=True,
)
"""mjvGeom of MuJoCo 3.3 (mjvisualize.h)."""


def scene_rows(scene: mujoco.MjvScene) -> np.ndarray:
    """Return all rows of a scene's geometries, `GEOM` `[maxgeom]`, in its own memory: valid while the scene lives.

    Raises:
        RuntimeError: if MuJoCo lays them out otherwise.
    """
    row, other = np.zeros(2, dtype=GEOM)
    ours = [row[name].ctypes.data for name in ("size", "pos", "mat", "rgba")] + [other["size"].ctypes.data]
    first, second = scene.geoms[0], scene.geoms[1]
    theirs = [getattr(first, name).ctypes.data for name in ("size", "pos", "mat", "rgba")] + [second.size.ctypes.data]
    if np.ptp(np.subtract(theirs, ours)):
        raise RuntimeError(f"MuJoCo {mujoco.__version__} lays mjvGeom out unlike 3.3")
    start = theirs[0] - 4 * len(INTS)
    memory = (ctypes.c_char * (scene.maxgeom * GEOM.itemsize)).from_address(start)
    return np.frombuffer(memory, dtype=GEOM)
