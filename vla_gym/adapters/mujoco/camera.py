"""Off-screen pictures of MuJoCo scenes: one GL context a process, one set of GL resources a model.

Taking a picture has two halves. `snap` copies what is visible (geometry poses, lights, cameras) and costs
0.1 ms; `develop` draws it and costs 50-100 ms in software. A simulator snaps at every step that may turn
out to be the last of a decision and develops only the one the policy will see.
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
    """The one context of this process: GL's numbers of textures and buffers mean something only in their own."""
    return mujoco.GLContext(CONTEXT_SIZE, CONTEXT_SIZE)


class Camera:
    """Square pictures of one model through some of its cameras.

    Args:
        model: compiled model; its off-screen buffer size is set to `size`, its textures and meshes uploaded.
        names: camera names of the model, in the order `develop` returns them.
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
        self._resources, self._borrowed = TEXTURES.upload(model, textures or {})
        self._viewport = mujoco.MjrRect(0, 0, size, size)
        self._size = size
        self._option, self._perturb = mujoco.MjvOption(), mujoco.MjvPerturb()
        for group in (HIDDEN_GROUP, *hidden_groups):
            self._option.geomgroup[group] = 0
        self._frustum = Frustum(model, self._option.geomgroup)
        self._views = {name: _view(model.camera(name).id) for name in self._names}

    def blank(self) -> dict[str, mujoco.MjvScene]:
        """Undeveloped film for one slot: one scene per camera, filled by `snap`."""
        return {name: mujoco.MjvScene(self._model, maxgeom=MAX_GEOMS) for name in self._names}

    def snap(self, data: mujoco.MjData, film: Mapping[str, mujoco.MjvScene]) -> None:
        """Copy what `data` shows into `film`; nothing is drawn."""
        groups = self._model.geom_group
        for name, scene in film.items():
            unseen = self._frustum.unseen(data, self._views[name].fixedcamid)
            kept = groups[unseen]
            groups[unseen] = HIDDEN_GROUP
            mujoco.mjv_updateScene(
                self._model,
                data,
                self._option,
                self._perturb,
                self._views[name],
                mujoco.mjtCatBit.mjCAT_ALL,
                scene,
            )
            groups[unseen] = kept

    def develop(self, film: Mapping[str, mujoco.MjvScene]) -> list[np.ndarray]:
        """Draw each camera of `film`: fresh u8 `[size, size, 3]`, rows bottom-up as OpenGL reads them."""
        _gl_context().make_current()
        # Drawing goes to whichever model's buffer was bound last, reading comes from this one's: with two
        # models in a process each would get the other's picture.
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._resources)
        pictures = []
        for scene in film.values():
            picture = np.empty((self._size, self._size, 3), dtype=np.uint8)
            mujoco.mjr_render(self._viewport, scene, self._resources)
            mujoco.mjr_readPixels(picture, None, self._viewport, self._resources)
            pictures.append(picture)
        return pictures

    def close(self) -> None:
        """Free the GL resources."""
        _gl_context().make_current()
        TEXTURES.give_back(self._resources, self._borrowed)
        self._resources.free()


class NoCamera:
    """In place of a `Camera` where nobody wants a picture: no GL context, no GL resources."""

    def blank(self) -> dict[str, mujoco.MjvScene]:
        """No film."""
        return {}

    def snap(self, data: mujoco.MjData, film: Mapping[str, mujoco.MjvScene]) -> None:
        """Nothing."""

    def develop(self, film: Mapping[str, mujoco.MjvScene]) -> list[np.ndarray]:
        """No pictures."""
        return []

    def close(self) -> None:
        """Nothing to free."""


class Frustum:
    """Which geometries cannot reach a picture: leaving them out is exact and saves a third of the drawing.

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
        """Ids of the geometries that camera id `camera` cannot see."""
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
