"""Off-screen images of MuJoCo scenes: one GL context a process, one set of GL resources and one scene a model.

An image is drawn of `Poses`, a copy of where everything is. It costs 5 microseconds, so a simulator takes one at every
step that may turn out to be the last of a decision; `render` draws the one that the policy will see.

Scenes of a benchmark are dressed in the same few large textures (4096 px floors and bowls), and uploading them
with their mipmaps is most of the cost of opening a scene: 0.3-0.5 s, and 90 MB each in GL. `SharedTextures` knows them
by the file of their pixels, uploads them once, and frees them with the last scene that shows them.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import mujoco
import numpy as np

from vla_gym.adapters.mujoco.gl_meshes import (
    PassLists,
    SiftedMeshes,
    delete_lists,
    in_software,
    share_lists,
    shared_meshes,
    siftable,
)
from vla_gym.adapters.mujoco.model_store import read_piece, texture_pixels
from vla_gym.adapters.mujoco.simple_meshes import DRAWN, drawn_triangles, is_simplified
from vla_gym.adapters.mujoco.visibility import Sight, mirrors

MAX_GEOMS = 1000
"""Visible geometries per scene, robosuite binding_utils.py:MjRenderContext."""
EFFECTS = (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION)
HIDDEN_GROUP = mujoco.mjNGROUP - 1
"""Group of geometries and sites that is never drawn; MuJoCo hides it by default."""
CONTEXT_SIZE = 64
"""Side of the GL context's own image, which stays empty: every `Camera` draws into a buffer of its size."""


@functools.cache
def _gl_context() -> mujoco.GLContext:
    """Return the one context of this process: GL's numbers of textures and buffers are valid in their own only."""
    return mujoco.GLContext(CONTEXT_SIZE, CONTEXT_SIZE)


SHADOW_MAP = ("shadowFBO", "shadowTex", "shadowSize")


@functools.cache
def _shadow_map(size: int) -> mujoco.MjrContext:
    """Return resources whose `SHADOW_MAP` all scenes draw shadows with; each drawing begins it anew."""
    model = mujoco.MjModel.from_xml_string(f'<mujoco><visual><quality shadowsize="{size}"/></visual></mujoco>')
    return mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)


class Poses(NamedTuple):
    """Arrays of `mjData` by which a rendered scene moves, tendons, skins and flexes aside."""

    geom_xpos: np.ndarray
    geom_xmat: np.ndarray
    site_xpos: np.ndarray
    site_xmat: np.ndarray
    cam_xpos: np.ndarray
    cam_xmat: np.ndarray
    light_xpos: np.ndarray
    light_xdir: np.ndarray

    @classmethod
    def of(cls, data: mujoco.MjData) -> Poses:
        """Return copies, as of the last position stage (`mj_step1`, `mj_forward`)."""
        return cls(*(getattr(data, name).copy() for name in cls._fields))

    def put(self, data: mujoco.MjData) -> None:
        """Overwrite those of another `data` of the same model."""
        for name, values in zip(self._fields, self, strict=True):
            getattr(data, name)[:] = values


class Camera:
    """Square images of one model through some of its cameras.

    Args:
        model: compiled model; its off-screen buffer size is set to `size`, its textures and meshes uploaded.
        names: camera names of the model, in the order `render` returns them.
        size: side of each image, pixels.
        hidden_groups: geom groups not drawn (robosuite hides group 0, the collision shapes).
        textures: texture id -> file of its pixels, for textures that are black in the model. Cameras of a
            process share them.
        effects: whether shadows and reflections are drawn.
        simple: folder of simplified meshes, which are drawn in place of large ones; None for all triangles.
        sift: whether large meshes are drawn with those triangles alone that may cover a sample, where the processor
            draws. Needs Numba.
        exact: whether sifting must not change a bit; otherwise a pixel may differ in some hundred images.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        names: Sequence[str],
        size: int,
        *,
        hidden_groups: Sequence[int] = (),
        textures: Mapping[int, Path] | None = None,
        effects: bool = True,
        simple: Path | None = None,
        sift: bool = False,
        exact: bool = True,
    ) -> None:
        _gl_context().make_current()
        model.vis.global_.offwidth = model.vis.global_.offheight = size
        shadow_size = model.vis.quality.shadowsize
        shadows = _shadow_map(shadow_size if effects else 0)
        model.vis.quality.shadowsize = 0  # no shadow map of its own: 64 MB less
        self._model = model
        corners = functools.partial(drawn_triangles, model, simple=simple)
        self._meshes = shared_meshes(model, hidden_groups, simple)
        own = {
            mesh
            for mesh, shared in self._meshes.items()
            if not (shared.display_list or is_simplified(model, mesh, simple))
        }
        with _without(model, sorted(set(range(model.nmesh)) - own)):
            self._resources, self._shared = TEXTURES.upload(model, textures or {})
        model.vis.quality.shadowsize = shadow_size
        for name in SHADOW_MAP:
            setattr(self._resources, name, getattr(shadows, name))
        self._own_lists = share_lists(self._resources, self._meshes, corners, own)
        self._viewport = mujoco.MjrRect(0, 0, size, size)
        self._size = size
        self._option, self._perturb = mujoco.MjvOption(), mujoco.MjvPerturb()
        for group in (HIDDEN_GROUP, *hidden_groups):
            self._option.geomgroup[group] = 0
        self._data = mujoco.MjData(model)
        for place in (mujoco.mj_kinematics, mujoco.mj_comPos, mujoco.mj_camlight, mujoco.mj_flex, mujoco.mj_tendon):
            place(model, self._data)
        self._views = [_view(model.camera(name).id) for name in names]
        self._mirrors = mirrors(self._filled(self._empty_scene(), self._views[0])) if effects else []
        self._sight = Sight(model, self._mirrors, shadows=effects)
        self._lists = PassLists(model, self._resources) if self._mirrors else None
        self._sifted: SiftedMeshes | None = None
        if sift and in_software() and (found := siftable(model, self._meshes)):
            indexed = {
                geom: self._meshes[mesh].indexed(functools.partial(corners, mesh)) for geom, mesh in found.items()
            }
            self._sifted = SiftedMeshes(indexed, model.ngeom, self._resources, self._lists, exact=exact)
        self._scene = self._sifted.new_scene(MAX_GEOMS) if self._sifted else self._empty_scene()
        for effect in () if effects else EFFECTS:
            self._scene.flags[effect] = 0

    def render(self, poses: Poses) -> list[np.ndarray]:
        """Draw what each camera sees: fresh u8 `[size, size, 3]`, rows bottom-up as OpenGL reads them."""
        _gl_context().make_current()
        # Drawing goes to whichever model's buffer was bound last, reading comes from this one's: with two
        # models in a process each would get the other's image.
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._resources)
        poses.put(self._data)
        return [self._draw(view) for view in self._views]

    def close(self) -> None:
        _gl_context().make_current()
        if self._lists is not None:
            self._lists.close()
        if self._sifted is not None:
            self._sifted.close()
        TEXTURES.release(self._resources, self._shared)
        self._resources.shadowFBO = self._resources.shadowTex = 0
        self._resources.free()
        for name in self._own_lists:
            delete_lists(name, 1)
        self._meshes.clear()

    def _draw(self, view: mujoco.MjvCamera) -> np.ndarray:
        seen = self._sight.seen(self._data, view.fixedcamid)
        unseen_G = ~(seen.direct_G | seen.mirrored_G)
        unseen_G[self._mirrors] = False  # without the first, MuJoCo would mirror in the second
        # MuJoCo draws what has an alpha below 0, as robosuite's marks, though GL takes it for 0 and leaves the image.
        invisible_S = self._model.site_rgba[:, 3] < 0
        with hidden(self._model.geom_group, unseen_G), hidden(self._model.site_group, invisible_S):
            scene = self._filled(self._scene, view)
        if self._lists is not None:
            self._lists.aim(scene, seen)
        if self._sifted is not None:
            self._sifted.aim(scene, seen, self._size)
        resources = self._sifted.resources if self._sifted else self._resources
        image = np.empty((self._size, self._size, 3), dtype=np.uint8)
        mujoco.mjr_render(self._viewport, scene, resources)
        mujoco.mjr_readPixels(image, None, self._viewport, self._resources)
        return image

    def _empty_scene(self) -> mujoco.MjvScene:
        return mujoco.MjvScene(self._model, maxgeom=MAX_GEOMS)

    def _filled(self, scene: mujoco.MjvScene, view: mujoco.MjvCamera) -> mujoco.MjvScene:
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, self._data, self._option, self._perturb, view, everything, scene)
        return scene


def forget_drawn(model: mujoco.MjModel) -> None:
    """Give the memory of what only GL needs back to the system; it reads as zeros afterwards.

    Textures and the triangles of meshes are not read again once a `Camera` holds them in GL; of meshes that nothing
    collides with, neither is anything else: together nearly all of a model (150-380 MB).
    """
    for array in (model.tex_data, *(getattr(model, name) for name in DRAWN if name != "mesh_vert")):
        _forget(array)
    if model.npair:
        return
    collides_G = (model.geom_type == mujoco.mjtGeom.mjGEOM_MESH) & ((model.geom_contype | model.geom_conaffinity) > 0)
    colliding = np.unique(model.geom_dataid[collides_G])
    for first, stop in itertools.pairwise([-1, *colliding, model.nmesh]):
        meshes = slice(int(first) + 1, int(stop))
        vert = _rows(model.mesh_vertadr, model.mesh_vertnum, meshes)
        poly = _rows(model.mesh_polyadr, model.mesh_polynum, meshes)
        stretches = [
            (vert, ("mesh_vert", "mesh_polymapadr", "mesh_polymapnum")),
            (poly, ("mesh_polynormal", "mesh_polyvertadr", "mesh_polyvertnum")),
            (_rows(model.mesh_bvhadr, model.mesh_bvhnum, meshes), ("bvh_depth", "bvh_child", "bvh_nodeid", "bvh_aabb")),
            (_rows(model.mesh_polyvertadr, model.mesh_polyvertnum, poly), ("mesh_polyvert",)),
            (_rows(model.mesh_polymapadr, model.mesh_polymapnum, vert), ("mesh_polymap",)),
        ]
        for rows, names in stretches:
            for name in names:
                _forget(getattr(model, name)[rows])


def _rows(adr: np.ndarray, num: np.ndarray, items: slice) -> slice:
    """The stretch of rows of consecutive items, from their first rows and numbers of rows."""
    used = num[items] > 0
    if not used.any():
        return slice(0)
    return slice(int(adr[items][used].min()), int((adr[items] + num[items])[used].max()))


@functools.cache
def _madvise() -> Callable[..., int] | None:
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.madvise if hasattr(mmap, "MADV_DONTNEED") and hasattr(libc, "madvise") else None


def _forget(array: np.ndarray) -> None:
    """Give whole pages of a contiguous array back; does nothing where the system has no madvise."""
    start = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (array.ctypes.data + array.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if length > 0 and (advise := _madvise()):
        advise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_DONTNEED)


@contextmanager
def hidden(groups: np.ndarray, members: np.ndarray) -> Iterator[None]:
    """Context manager in which members (bool) of a model's groups are in the one that is never drawn."""
    kept = groups[members]
    groups[members] = HIDDEN_GROUP
    try:
        yield
    finally:
        groups[members] = kept


@contextmanager
def _without(model: mujoco.MjModel, meshes: list[int]) -> Iterator[None]:
    kept = model.mesh_facenum[meshes]
    model.mesh_facenum[meshes] = 0
    try:
        yield
    finally:
        model.mesh_facenum[meshes] = kept


def _view(camera_id: int) -> mujoco.MjvCamera:
    view = mujoco.MjvCamera()
    view.type = mujoco.mjtCamera.mjCAMERA_FIXED
    view.fixedcamid = camera_id
    return view


Key = tuple[Path, int, int, int]
"""File of the pixels, type, width, height."""


class SharedTextures:
    """The large textures of one process's GL context."""

    def __init__(self) -> None:
        self._names: dict[Key, int] = {}
        """GL's numbers of the textures."""
        self._num_users: Counter[Key] = Counter()

    def upload(self, model: mujoco.MjModel, files: Mapping[int, Path]) -> tuple[mujoco.MjrContext, dict[int, Key]]:
        """Return GL resources of `model`, and its textures that are shared; a GL context must be current.

        Args:
            model: textures named in `files` may be black in it; those uploaded now are painted in place.
            files: texture id -> file of its pixels.

        Raises:
            FileNotFoundError: if a file is gone or damaged.
        """
        keys = {tex: self._key(model, tex, file) for tex, file in files.items()}
        known = [tex for tex, key in keys.items() if key in self._names]
        for tex in keys.keys() - set(known):
            pixels = texture_pixels(model, tex)
            pixels[:] = np.frombuffer(read_piece(files[tex]), dtype=np.uint8)
        width, height = model.tex_width.copy(), model.tex_height.copy()
        model.tex_width[known] = model.tex_height[known] = 1  # a placeholder costs nothing to upload
        resources = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        model.tex_width[:], model.tex_height[:] = width, height
        for tex, key in keys.items():
            own = int(resources.texture[tex])
            resources.texture[tex] = self._names.setdefault(key, own)
            if self._names[key] != own:
                _delete(own)
            self._num_users[key] += 1
        return resources, keys

    def release(self, resources: mujoco.MjrContext, keys: Mapping[int, Key]) -> None:
        """Take the shared textures, as of `upload`, out of `resources` before these are freed."""
        for tex, key in keys.items():
            resources.texture[tex] = 0  # freeing texture 0 does nothing
            self._num_users[key] -= 1
            if not self._num_users[key]:
                _delete(self._names.pop(key))

    def __len__(self) -> int:
        return len(self._names)

    @staticmethod
    def _key(model: mujoco.MjModel, tex: int, file: Path) -> Key:
        return file, int(model.tex_type[tex]), int(model.tex_width[tex]), int(model.tex_height[tex])


TEXTURES = SharedTextures()


def _delete(name: int) -> None:
    from OpenGL import GL  # reads PYOPENGL_PLATFORM when imported

    GL.glDeleteTextures([name])
