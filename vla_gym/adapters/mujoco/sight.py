"""Which geometries of a MuJoCo scene can reach a picture, straight or by way of the mirror in it.

Leaving out the others is exact. A geometry cannot reach a picture where its bounding box lies beyond one side of the
camera's pyramid. MuJoCo mirrors in planes and in the upper faces of boxes, in the first of a scene alone
(render_gl3.c:mjr_render): what is mirrored must lie in the pyramid from the mirrored camera through the mirror, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

OPAQUE = 0.995
"""Alpha from which MuJoCo draws a geometry before the transparent ones (render_gl3.c:mjr_render)."""
MARGIN = 1e-4
"""Metres that boxes count as larger: GL places vertices in float32."""


@dataclass(frozen=True)
class Mirror:
    """A plane in the world."""

    normal_3: np.ndarray
    """Of length 1."""
    origin_3: np.ndarray


@dataclass(frozen=True)
class Seen:
    """What reaches one picture of `G` geometries."""

    direct_G: np.ndarray
    """Bool: straight."""
    mirrored_G: np.ndarray
    """Bool: by way of the mirror."""
    reflects: bool
    """Whether MuJoCo draws the mirror's picture, be it empty."""
    mirror: Mirror | None = None
    """The mirror of `mirrored_G`; None where that is in doubt."""


class Sight:
    """Tells what each camera of a model sees.

    Args:
        model: compiled model.
        mirrors: ids of the geometries that can mirror, in the order of the scene; none where reflections are not drawn.
        shadows: whether shadows are drawn. Then everything counts as seen, for a shadow may fall into the view.
    """

    def __init__(self, model: mujoco.MjModel, mirrors: Sequence[int], *, shadows: bool) -> None:
        self._mirrors = tuple(mirrors)
        self._plane_G = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
        self._size_G3 = model.geom_size.copy()
        self._centre_G3, self._half_G3 = model.geom_aabb[:, :3].copy(), model.geom_aabb[:, 3:] + MARGIN
        half = np.deg2rad(model.cam_fovy) / 2
        self._sine_C, self._cosine_C = np.sin(half), np.cos(half)
        self._applies_C = ~(model.cam_orthographic.astype(bool) | model.cam_sensorsize.any(axis=1))
        if shadows and model.light_castshadow.any():
            self._applies_C[:] = False

    def seen(self, data: mujoco.MjData, camera: int) -> Seen:
        """Return what camera id `camera` sees of a forwarded `data`; in doubt, everything."""
        everything_G = np.ones(len(self._plane_G), dtype=bool)
        nothing_G = ~everything_G
        if not self._applies_C[camera]:
            return Seen(everything_G, everything_G, reflects=bool(self._mirrors))
        view_P4 = self._view(data, camera)
        boxes = self._boxes(data)
        direct_G = self._inside(boxes, view_P4)
        mirror = self._mirror(data, camera)
        if mirror is None:
            return Seen(direct_G, nothing_G, reflects=False)
        frame_33, origin_3 = data.geom_xmat[mirror].reshape(3, 3), data.geom_xpos[mirror].copy()
        if not self._plane_G[mirror]:
            origin_3 += frame_33[:, 2] * self._size_G3[mirror, 2]
        eye_3 = (data.cam_xpos[camera] - origin_3) @ frame_33
        if abs(eye_3[2]) < MARGIN:  # too close to tell on which side of the mirror MuJoCo finds the camera
            return Seen(everything_G, everything_G, reflects=True)
        if eye_3[2] < 0:
            return Seen(direct_G, nothing_G, reflects=False)
        if not direct_G[mirror]:
            return Seen(direct_G, nothing_G, reflects=True)
        through_P4 = into_world(through(eye_3, self._size_G3[mirror]), frame_33, origin_3)
        beyond_P4 = mirrored(view_P4, frame_33[:, 2], origin_3)
        mirrored_G = self._inside(boxes, np.concatenate([through_P4, beyond_P4]))
        return Seen(direct_G, mirrored_G, reflects=True, mirror=Mirror(frame_33[:, 2], origin_3))

    def _mirror(self, data: mujoco.MjData, camera: int) -> int | None:
        """The geometry that MuJoCo mirrors in: the first that can; a plane seen from behind is glass."""
        for geom in self._mirrors:
            normal_3 = data.geom_xmat[geom].reshape(3, 3)[:, 2]
            if not self._plane_G[geom] or (data.cam_xpos[camera] - data.geom_xpos[geom]) @ normal_3 >= 0:
                return geom
        return None

    def _view(self, data: mujoco.MjData, camera: int) -> np.ndarray:
        """The sides of the picture's pyramid, which looks along -z of the camera; see `_inside`."""
        sine, cosine = self._sine_C[camera], self._cosine_C[camera]
        inwards_P3 = np.array(
            [[-cosine, 0, -sine], [cosine, 0, -sine], [0, -cosine, -sine], [0, cosine, -sine], [0, 0, -1]]
        )
        sides_P4 = np.column_stack([inwards_P3, np.zeros(len(inwards_P3))])
        return into_world(sides_P4, data.cam_xmat[camera].reshape(3, 3), data.cam_xpos[camera])

    def _boxes(self, data: mujoco.MjData) -> tuple[np.ndarray, np.ndarray]:
        """Bounding boxes in the world: centres `[G, 3]` and half axes `[G, 3, 3]`, one per column."""
        frame_G33 = data.geom_xmat.reshape(-1, 3, 3)
        centre_G3 = data.geom_xpos + np.einsum("gij,gj->gi", frame_G33, self._centre_G3)
        return centre_G3, frame_G33 * self._half_G3[:, None]

    def _inside(self, boxes: tuple[np.ndarray, np.ndarray], side_P4: np.ndarray) -> np.ndarray:
        """Bool `[G]`: boxes beyond none of the sides `(n, d)`, inside of which n.x + d >= 0; planes are endless."""
        centre_G3, axis_G33 = boxes
        reach_GP = np.abs(np.einsum("pi,gij->gpj", side_P4[:, :3], axis_G33)).sum(axis=2)
        inside: np.ndarray = (centre_G3 @ side_P4[:, :3].T + side_P4[:, 3] + reach_GP >= 0).all(axis=1)
        return inside | self._plane_G


def mirrors(scene: mujoco.MjvScene) -> list[int]:
    """Return the ids of a whole scene's geometries that can mirror: opaque planes and boxes with reflectance."""
    shapes = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_BOX)
    geoms = (scene.geoms[index] for index in range(scene.ngeom))
    return [
        geom.objid
        for geom in geoms
        if geom.objtype == mujoco.mjtObj.mjOBJ_GEOM
        and geom.type in shapes
        and geom.reflectance > 0
        and geom.rgba[3] >= OPAQUE
    ]


def through(eye_3: np.ndarray, half_3: np.ndarray) -> np.ndarray:
    """Sides `[P, 4]` of what a camera sees in a mirror, both in the mirror's frame.

    Args:
        eye_3: the camera, above the mirror (z > 0).
        half_3: the mirror is |x| <= half_3[0], |y| <= half_3[1] at z = 0; a size of 0 is endless, as of planes.

    The mirrored camera looks through it from z = -eye_3[2]. At height z it sees x up to a + z (a - x_eye) / z_eye
    for the edge at a.
    """
    height = eye_3[2]
    sides = [[0.0, 0.0, 1.0, 0.0]]
    for axis, (eye, half) in enumerate(zip(eye_3[:2], half_3[:2], strict=True)):
        for sign in (1.0, -1.0) if half > 0 else ():
            side = [0.0, 0.0, half - sign * eye, half * height]
            side[axis] = -sign * height
            sides.append(side)
    side_P4 = np.array(sides)
    return side_P4 / np.linalg.norm(side_P4[:, :3], axis=1, keepdims=True)


def mirrored(side_P4: np.ndarray, normal_3: np.ndarray, origin_3: np.ndarray) -> np.ndarray:
    """Sides `[P, 4]` that hold a point where `side_P4` hold its image in the mirror at `origin_3`."""
    along_P = side_P4[:, :3] @ normal_3
    inwards_P3 = side_P4[:, :3] - 2 * along_P[:, None] * normal_3
    return np.column_stack([inwards_P3, side_P4[:, 3] + 2 * along_P * (origin_3 @ normal_3)])


def into_world(side_P4: np.ndarray, frame_33: np.ndarray, origin_3: np.ndarray) -> np.ndarray:
    """Sides `[P, 4]` of a frame, its axes in columns, in the world's coordinates."""
    inwards_P3 = side_P4[:, :3] @ frame_33.T
    return np.column_stack([inwards_P3, side_P4[:, 3] - inwards_P3 @ origin_3])
