"""Off-screen pictures of MuJoCo scenes: one GL context a process, one set of GL resources a model.

A picture is taken in two steps, as by `mujoco.Renderer`. `update_scenes` copies the visible things (geometry poses,
lights, cameras) and costs 0.1 ms; `render` draws them and costs 50-100 ms in software. A simulator updates at every
step that may turn out to be the last of a decision and renders only the one the policy will see.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import mujoco
import numpy as np

from vla_gym.adapters.mujoco.gl_faces import SiftedMeshes, in_software, siftable
from vla_gym.adapters.mujoco.gl_lists import PassLists, draw_instead
from vla_gym.adapters.mujoco.gl_textures import TEXTURES
from vla_gym.adapters.mujoco.sight import Seen, Sight, mirrors
from vla_gym.adapters.mujoco.simple_meshes import Corners

MAX_GEOMS = 1000
"""Visible geometries per scene, robosuite binding_utils.py:MjRenderContext."""
EFFECTS = (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION)
HIDDEN_GROUP = mujoco.mjNGROUP - 1
"""Geom group that is never drawn; MuJoCo hides it by default."""
CONTEXT_SIZE = 64
"""Side of the GL context's own picture, which stays empty: every `Camera` draws into a buffer of its size."""


@functools.cache
def _gl_context() -> mujoco.GLContext:
    """Return the one context of this process: GL's numbers of textures and buffers are valid in their own only."""
    return mujoco.GLContext(CONTEXT_SIZE, CONTEXT_SIZE)


@dataclass
class View:
    """What one camera is about to draw for one slot."""

    scene: mujoco.MjvScene
    seen: Seen
    aimed: bool = False
    """Whether the scene's meshes already go by `seen`."""
    faces: list[tuple[int, np.ndarray]] = field(default_factory=list)
    """What is drawn of sifted meshes; see `SiftedMeshes.aim`."""


class Camera:
    """Square pictures of one model through some of its cameras.

    Args:
        model: compiled model; its off-screen buffer size is set to `size`, its textures and meshes uploaded.
        names: camera names of the model, in the order `render` returns them.
        size: side of each picture, pixels.
        hidden_groups: geom groups not drawn (robosuite hides group 0, the collision shapes).
        textures: texture id -> file of its pixels, for textures that are black in the model. Cameras of a
            process share them.
        effects: whether shadows and reflections are drawn.
        meshes: mesh id -> triangles drawn in its place.
        sift: whether large meshes are drawn with those triangles alone that may cover a sample, where the processor
            draws. Needs Numba.
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
        meshes: Mapping[int, Corners] | None = None,
        sift: bool = False,
    ) -> None:
        _gl_context().make_current()
        model.vis.global_.offwidth = model.vis.global_.offheight = size
        if not effects:
            model.vis.quality.shadowsize = 0  # no shadow map: 64 MB less
        self._model, self._effects = model, effects
        self._names = tuple(names)
        with _without(model, list(meshes or {})):
            self._resources, self._shared = TEXTURES.upload(model, textures or {})
        for mesh, corners in (meshes or {}).items():
            draw_instead(self._resources, mesh, corners)
        self._viewport = mujoco.MjrRect(0, 0, size, size)
        self._size = size
        self._option, self._perturb = mujoco.MjvOption(), mujoco.MjvPerturb()
        for group in (HIDDEN_GROUP, *hidden_groups):
            self._option.geomgroup[group] = 0
        self._views = {name: _view(model.camera(name).id) for name in self._names}
        self._sifted: SiftedMeshes | None = None
        self._mirrors = self._find_mirrors() if effects else []
        self._sight = Sight(model, self._mirrors, shadows=effects)
        self._lists = PassLists(model, self._resources) if self._mirrors else None
        found = siftable(model, meshes or {}, hidden_groups) if sift and in_software() else {}
        if found:
            self._sifted = SiftedMeshes(found, model.ngeom, self._resources, self._lists)

    def new_scenes(self) -> dict[str, View]:
        """Return an empty scene per camera, for one slot."""
        everything = np.ones(self._model.ngeom, dtype=bool)
        return {name: View(self._empty_scene(), Seen(everything, everything, reflects=False)) for name in self._names}

    def update_scenes(self, data: mujoco.MjData, scenes: Mapping[str, View]) -> None:
        """Copy the visible part of `data` into each camera's scene; nothing is drawn."""
        groups = self._model.geom_group
        for name, view in scenes.items():
            view.seen, view.aimed = self._sight.seen(data, self._views[name].fixedcamid), False
            unseen = ~(view.seen.direct_G | view.seen.mirrored_G)
            unseen[self._mirrors] = False  # without the first, MuJoCo would mirror in the second
            kept = groups[unseen]
            groups[unseen] = HIDDEN_GROUP
            self._copy(data, name, view.scene)
            groups[unseen] = kept

    def render(self, scenes: Mapping[str, View]) -> list[np.ndarray]:
        """Draw each scene: fresh u8 `[size, size, 3]`, rows bottom-up as OpenGL reads them."""
        _gl_context().make_current()
        # Drawing goes to whichever model's buffer was bound last, reading comes from this one's: with two
        # models in a process each would get the other's picture.
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._resources)
        pictures = []
        for view in scenes.values():
            self._aim(view)
            picture = np.empty((self._size, self._size, 3), dtype=np.uint8)
            resources = self._sifted.resources if self._sifted else self._resources
            mujoco.mjr_render(self._viewport, view.scene, resources)
            mujoco.mjr_readPixels(picture, None, self._viewport, self._resources)
            pictures.append(picture)
        return pictures

    def close(self) -> None:
        """Free the GL resources."""
        _gl_context().make_current()
        if self._lists is not None:
            self._lists.close()
        if self._sifted is not None:
            self._sifted.close()
        TEXTURES.release(self._resources, self._shared)
        self._resources.free()

    def _aim(self, view: View) -> None:
        if not view.aimed:
            if self._lists is not None:
                self._lists.aim(view.scene, view.seen)
            if self._sifted is not None:
                view.faces = self._sifted.aim(view.scene, view.seen, self._size)
            view.aimed = True
        if self._lists is not None:
            self._lists.begin(reflects=view.seen.reflects)
        if self._sifted is not None:
            self._sifted.begin(view.scene, view.faces)

    def _empty_scene(self) -> mujoco.MjvScene:
        sifted = self._sifted
        scene = sifted.new_scene(MAX_GEOMS) if sifted else mujoco.MjvScene(self._model, maxgeom=MAX_GEOMS)
        if not self._effects:
            for effect in EFFECTS:
                scene.flags[effect] = 0
        return scene

    def _copy(self, data: mujoco.MjData, name: str, scene: mujoco.MjvScene) -> None:
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, data, self._option, self._perturb, self._views[name], everything, scene)

    def _find_mirrors(self) -> list[int]:
        """Ids of the geometries that may mirror, in the order in which MuJoCo looks for one."""
        data, scene = mujoco.MjData(self._model), self._empty_scene()
        mujoco.mj_forward(self._model, data)
        self._copy(data, self._names[0], scene)
        return mirrors(scene)


class NoCamera:
    """A `Camera` for no pictures: no GL context, no GL resources."""

    def new_scenes(self) -> dict[str, View]:
        """Return no scene."""
        return {}

    def update_scenes(self, data: mujoco.MjData, scenes: Mapping[str, View]) -> None:
        """Do nothing."""

    def render(self, scenes: Mapping[str, View]) -> list[np.ndarray]:
        """Return no pictures."""
        return []

    def close(self) -> None:
        """Do nothing."""


def forget_textures(model: mujoco.MjModel) -> None:
    """Give the memory of a model's texture pixels back to the system; `tex_data` reads as zeros afterwards.

    Once a `Camera` holds them in GL they are not read again, and they are half of a model (50-190 MB).
    Does nothing where the system has no madvise.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(mmap, "MADV_DONTNEED") or not hasattr(libc, "madvise"):
        return
    pixels = model.tex_data
    page = mmap.PAGESIZE
    start = -(-pixels.ctypes.data // page) * page
    length = (pixels.ctypes.data + pixels.nbytes - start) // page * page
    if length > 0:
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_DONTNEED)


@contextmanager
def _without(model: mujoco.MjModel, meshes: list[int]) -> Iterator[None]:
    """Context manager in which these meshes have no triangles, so that none are uploaded."""
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
