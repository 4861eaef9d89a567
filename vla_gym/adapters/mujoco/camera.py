"""Off-screen pictures of MuJoCo scenes: one GL context a process, one set of GL resources a model.

A picture is taken in two steps, as by `mujoco.Renderer`. `update_scenes` copies the visible things (geometry poses,
lights, cameras) and costs 0.1 ms; `render` draws them and costs 50-100 ms in software. A simulator updates at every
step that may turn out to be the last of a decision and renders only the one the policy will see.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path

import mujoco
import numpy as np

from vla_gym.adapters.mujoco.gl_textures import TEXTURES

MAX_GEOMS = 1000
"""Visible geometries per scene, robosuite binding_utils.py:MjRenderContext."""
HIDDEN_GROUP = mujoco.mjNGROUP - 1
"""Geom group that is never drawn; MuJoCo hides it by default."""
CONTEXT_SIZE = 64
"""Side of the GL context's own picture, which stays empty: every `Camera` draws into a buffer of its size."""


@functools.cache
def _gl_context() -> mujoco.GLContext:
    """Return the one context of this process: GL's numbers of textures and buffers are valid in their own only."""
    return mujoco.GLContext(CONTEXT_SIZE, CONTEXT_SIZE)


class Camera:
    """Square pictures of one model through some of its cameras.

    Args:
        model: compiled model; its off-screen buffer size is set to `size`, its textures and meshes uploaded.
        names: camera names of the model, in the order `render` returns them.
        size: side of each picture, pixels.
        hidden_groups: geom groups not drawn (robosuite hides group 0, the collision shapes).
        textures: texture id -> file of its pixels, for textures that are black in the model. Cameras of a
            process share them.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        names: Sequence[str],
        size: int,
        *,
        hidden_groups: Sequence[int] = (),
        textures: Mapping[int, Path] | None = None,
    ) -> None:
        _gl_context().make_current()
        model.vis.global_.offwidth = model.vis.global_.offheight = size
        self._model = model
        self._names = tuple(names)
        self._resources, self._shared = TEXTURES.upload(model, textures or {})
        self._viewport = mujoco.MjrRect(0, 0, size, size)
        self._size = size
        self._option, self._perturb = mujoco.MjvOption(), mujoco.MjvPerturb()
        for group in (HIDDEN_GROUP, *hidden_groups):
            self._option.geomgroup[group] = 0
        self._frustum = Frustum(model, self._option.geomgroup)
        self._views = {name: _view(model.camera(name).id) for name in self._names}

    def new_scenes(self) -> dict[str, mujoco.MjvScene]:
        """Return an empty scene per camera, for one slot."""
        return {name: mujoco.MjvScene(self._model, maxgeom=MAX_GEOMS) for name in self._names}

    def update_scenes(self, data: mujoco.MjData, scenes: Mapping[str, mujoco.MjvScene]) -> None:
        """Copy the visible part of `data` into each camera's scene; nothing is drawn."""
        groups, everything = self._model.geom_group, mujoco.mjtCatBit.mjCAT_ALL
        for name, scene in scenes.items():
            view = self._views[name]
            unseen = self._frustum.unseen(data, view.fixedcamid)
            kept = groups[unseen]
            groups[unseen] = HIDDEN_GROUP
            mujoco.mjv_updateScene(self._model, data, self._option, self._perturb, view, everything, scene)
            groups[unseen] = kept

    def render(self, scenes: Mapping[str, mujoco.MjvScene]) -> list[np.ndarray]:
        """Draw each scene: fresh u8 `[size, size, 3]`, rows bottom-up as OpenGL reads them."""
        _gl_context().make_current()
        # Drawing goes to whichever model's buffer was bound last, reading comes from this one's: with two
        # models in a process each would get the other's picture.
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._resources)
        pictures = []
        for scene in scenes.values():
            picture = np.empty((self._size, self._size, 3), dtype=np.uint8)
            mujoco.mjr_render(self._viewport, scene, self._resources)
            mujoco.mjr_readPixels(picture, None, self._viewport, self._resources)
            pictures.append(picture)
        return pictures

    def close(self) -> None:
        """Free the GL resources."""
        _gl_context().make_current()
        TEXTURES.release(self._resources, self._shared)
        self._resources.free()


class NoCamera:
    """A `Camera` for no pictures: no GL context, no GL resources."""

    def new_scenes(self) -> dict[str, mujoco.MjvScene]:
        """Return no scene."""
        return {}

    def update_scenes(self, data: mujoco.MjData, scenes: Mapping[str, mujoco.MjvScene]) -> None:
        """Do nothing."""

    def render(self, scenes: Mapping[str, mujoco.MjvScene]) -> list[np.ndarray]:
        """Return no pictures."""
        return []

    def close(self) -> None:
        """Do nothing."""


class Frustum:
    """Finds geometries that cannot reach a picture: leaving them out is exact and saves a third of the drawing.

    A geometry is out when its bounding sphere lies beyond one side of the view, and so does its image in
    every mirror (MuJoCo mirrors in planes and in the upper faces of boxes). With lights that cast shadows
    nothing is left out, for a shadow may fall into the view.
    """

    def __init__(self, model: mujoco.MjModel, drawn_groups: np.ndarray) -> None:
        self._radius = model.geom_rbound.copy()
        half = np.deg2rad(model.cam_fovy) / 2
        self._sine, self._cosine = np.sin(half), np.cos(half)
        self._applies = ~(model.cam_orthographic.astype(bool) | model.cam_sensorsize.any(axis=1))
        if model.light_castshadow.any():
            self._applies[:] = False
        flat = np.isin(model.geom_type, (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_BOX))
        reflectance = np.append(model.mat_reflectance, 0.0)[model.geom_matid]
        drawn = np.asarray(drawn_groups, dtype=bool)[model.geom_group]
        self._mirrors = np.flatnonzero(flat & (reflectance > 0) & drawn)
        box = model.geom_type[self._mirrors] == mujoco.mjtGeom.mjGEOM_BOX
        self._mirror_height = np.where(box, model.geom_size[self._mirrors, 2], 0.0)

    def unseen(self, data: mujoco.MjData, camera: int) -> np.ndarray:
        """Return the ids of the geometries that camera id `camera` cannot see."""
        if not self._applies[camera]:
            return np.empty(0, dtype=int)
        out = self._outside(data, camera, data.geom_xpos)
        for mirror, height in zip(self._mirrors, self._mirror_height, strict=True):
            normal = data.geom_xmat[mirror].reshape(3, 3)[:, 2]
            above = (data.geom_xpos - data.geom_xpos[mirror]) @ normal - height
            out &= self._outside(data, camera, data.geom_xpos - 2.0 * above[:, None] * normal)
        return np.flatnonzero(out)

    def _outside(self, data: mujoco.MjData, camera: int, centre: np.ndarray) -> np.ndarray:
        """Bool per geometry; a radius of 0 (planes) means unbounded. The camera looks along -z."""
        x, y, z = ((centre - data.cam_xpos[camera]) @ data.cam_xmat[camera].reshape(3, 3)).T
        sine, cosine, radius = self._sine[camera], self._cosine[camera], self._radius
        beyond = np.maximum(np.abs(x), np.abs(y)) * cosine + z * sine > radius
        return (beyond | (z > radius)) & (radius > 0)


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


def _view(camera_id: int) -> mujoco.MjvCamera:
    view = mujoco.MjvCamera()
    view.type = mujoco.mjtCamera.mjCAMERA_FIXED
    view.fixedcamid = camera_id
    return view
