"""Which geometries of a MuJoCo scene, and which triangles of a mesh, can reach an image, straight or in a mirror.

Leaving out the others is exact. A geometry cannot reach an image where its bounding box lies beyond one side of the
camera's pyramid. MuJoCo mirrors in planes and in the upper faces of boxes, in the first of a scene alone
(render_gl3.c:mjr_render): what is mirrored must lie in the pyramid from the mirrored camera through the mirror, too.

GL colours a sample where a triangle that faces the camera covers the sample's point. A triangle is left out where it
cannot, with a margin for the places that GL gives its corners: computed in float32, then rounded to parts of a pixel.
Scanned objects and CAD robots have several triangles a sample, so most of theirs cover none.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
    """The geometries, of `G`, that reach one image."""

    direct_G: np.ndarray
    """Bool: straight."""
    mirrored_G: np.ndarray
    """Bool: by way of the mirror."""
    reflects: bool
    """Whether MuJoCo draws the mirror's image, be it empty."""
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
        """The sides of the image's pyramid, which looks along -z of the camera; see `_inside`."""
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


SLIP = 1e-5
"""Metres by which float32 may misplace a corner in front of the camera, in scenes of some 10 m."""
ROUNDING = 1e-3
"""Pixels that `keep_covering` itself may be out, in images of up to 4,096."""
CLOSE = 2.0
"""Corners nearer than so many times the distance up to which GL clips, or farther than the same share of the distance
from which it does, count as out of view."""
SMALL = 2.0
"""Pixels: larger triangles in view count as covering a sample."""
ANYWHERE = 1e9
"""Pixels by which a corner may be misplaced that is too near or far to tell where it is."""


@dataclass(frozen=True)
class Samples:
    """How GL samples an image."""

    point_S2: np.ndarray
    """In a pixel, from its lower left corner."""
    step: float
    """Pixels to which the places of corners are rounded."""


@dataclass(frozen=True)
class Lens:
    """A camera's pose and its square image.

    Window coordinates are GL's: pixels from the lower left corner.
    """

    origin_3: np.ndarray
    axis_33: np.ndarray
    """Rows: right, up, forward."""
    focal: float
    """Pixels."""
    slope: float
    """Tangent of half the angle of view."""
    near: float
    """Metres: what is nearer is clipped."""
    far: float
    """Metres: what is farther is clipped."""
    size: int
    """Pixels."""
    samples: Samples

    def mirrored(self, mirror: Mirror) -> Lens:
        """The lens behind the mirror, whose image has left and right exchanged."""

        def turned(vector: np.ndarray) -> np.ndarray:
            return vector - 2 * (vector @ mirror.normal_3)[..., None] * mirror.normal_3

        return replace(
            self,
            origin_3=mirror.origin_3 + turned(self.origin_3 - mirror.origin_3),
            axis_33=turned(self.axis_33) * [[-1], [1], [1]],
            samples=replace(self.samples, point_S2=np.abs(np.array([1, 0]) - self.samples.point_S2)),
        )

    @classmethod
    def of(cls, scene: mujoco.MjvScene, size: int, samples: Samples) -> Lens:
        """The lens through which `mjr_render` draws a scene: the mean of its two cameras."""
        left, right = scene.camera
        forward_3, up_3 = np.asarray(left.forward, np.float64), np.asarray(left.up, np.float64)
        slope = float(left.frustum_top) / float(left.frustum_near)
        return cls(
            origin_3=(np.asarray(left.pos, np.float64) + right.pos) / 2,
            axis_33=np.stack([np.cross(forward_3, up_3), up_3, forward_3]),
            focal=size / 2 / slope,
            slope=slope,
            near=float(left.frustum_near),
            far=float(left.frustum_far),
            size=size,
            samples=samples,
        )


def covering_faces(
    mesh: tuple[np.ndarray, np.ndarray], frame_33: np.ndarray, origin_3: np.ndarray, lens: Lens, *, exact: bool = True
) -> np.ndarray | None:
    """Return which triangles of a mesh may cover a sample, uint32, rising.

    Args:
        mesh: contiguous float32 positions in the mesh's frame `[V, 3]`, and uint32 rows of them `[F, 3]`,
            counter-clockwise from in front.
        frame_33: axes of the mesh's frame in the world, in columns.
        origin_3: its origin.
        lens: the camera.
        exact: return None where the mesh is not wholly in view. There GL may take other ways from corners to pixels
            for triangles that share a batch with clipped ones, and round otherwise: who leaves out some changes
            what becomes of others, by a pixel in some hundred images.
    """
    turn_33 = lens.axis_33 @ frame_33.astype(np.float64)
    shift_3 = lens.axis_33 @ (origin_3.astype(np.float64) - lens.origin_3)
    inexact = lens.samples.step + ROUNDING, SLIP * (1 + lens.slope)
    view = np.array([lens.focal, lens.size, CLOSE * lens.near, lens.far / CLOSE, *inexact])
    place_V3, kept_F = _workspace(mesh[0].shape, np.float32), _workspace(mesh[1].shape[:1], np.uint32)
    number = _compiled()(*mesh, turn_33, shift_3, view, exact, lens.samples.point_S2, place_V3, kept_F)
    return kept_F[:number].copy() if number >= 0 else None


def keep_covering(
    vertex_V3: np.ndarray,
    face_F3: np.ndarray,
    turn_33: np.ndarray,
    shift_3: np.ndarray,
    view: np.ndarray,
    exact: bool,
    point_S2: np.ndarray,
    place_V3: np.ndarray,
    kept_F: np.ndarray,
) -> int:
    """Write the numbers of triangles that may cover a sample into `kept_F`; return how many.

    Compiled by Numba.

    Args:
        vertex_V3: as of `covering_faces`.
        face_F3: as there.
        turn_33: the mesh's frame as the camera sees it: rows are right, up, forward.
        shift_3: its origin, in the same rows.
        view: pixels of a metre at 1 m, pixels of a side, least and greatest depth in view, pixels by which a corner
            may be misplaced, metres by which it may be.
        exact: whether to return -1 of a mesh that is not wholly in view.
        point_S2: of the samples in a pixel.
        place_V3: float32 workspace: corners are at `(u, v)`, give or take `r`.
        kept_F: the result.
    """
    focal, size, close, far, step, slip = view[0], view[1], view[2], view[3], view[4], view[5]
    for n in range(vertex_V3.shape[0]):
        x, y, z = vertex_V3[n, 0], vertex_V3[n, 1], vertex_V3[n, 2]
        depth = turn_33[2, 0] * x + turn_33[2, 1] * y + turn_33[2, 2] * z + shift_3[2]
        if depth < close or depth > far:
            if exact:
                return -1
            place_V3[n, 0], place_V3[n, 1], place_V3[n, 2] = 0.0, 0.0, ANYWHERE
            continue
        scale = focal / depth
        r = step + scale * slip
        u = size / 2 + scale * (turn_33[0, 0] * x + turn_33[0, 1] * y + turn_33[0, 2] * z + shift_3[0])
        v = size / 2 + scale * (turn_33[1, 0] * x + turn_33[1, 1] * y + turn_33[1, 2] * z + shift_3[1])
        if exact and (u < r or u > size - r or v < r or v > size - r):
            return -1
        place_V3[n, 0], place_V3[n, 1], place_V3[n, 2] = u, v, r
    number = 0
    for face in range(face_F3.shape[0]):
        a, b, c = face_F3[face, 0], face_F3[face, 1], face_F3[face, 2]
        au, av, ar = place_V3[a, 0], place_V3[a, 1], place_V3[a, 2]
        bu, bv, br = place_V3[b, 0], place_V3[b, 1], place_V3[b, 2]
        cu, cv, cr = place_V3[c, 0], place_V3[c, 1], place_V3[c, 2]
        r = max(ar, br, cr)
        left, right = min(au, bu, cu) - r, max(au, bu, cu) + r
        bottom, top = min(av, bv, cv) - r, max(av, bv, cv) + r
        if right < 0 or left > size or top < 0 or bottom > size:
            continue
        area = (bu - au) * (cv - av) - (cu - au) * (bv - av)
        # With corners a, b displaced by p, q the edge's side of s, (b - a) x (s - a), changes by q x (s - a)
        # + p x (b - s) - (q - p) x p: by at most so much for |p|, |q| <= r in each axis and s in the box. So does
        # the area.
        doubt = 2 * r * (right - left + top - bottom)
        if area < -doubt:
            continue
        keep = right - left > SMALL or top - bottom > SMALL
        for s in range(0 if keep else point_S2.shape[0]):
            u = np.ceil(left - point_S2[s, 0]) + point_S2[s, 0]
            while u <= right and not keep:
                v = np.ceil(bottom - point_S2[s, 1]) + point_S2[s, 1]
                while v <= top and not keep:
                    # On the inner side of all edges, or too near one to tell; all there is of a sliver's box.
                    keep = area <= doubt or (
                        (bu - au) * (v - av) - (u - au) * (bv - av) >= -doubt
                        and (cu - bu) * (v - bv) - (u - bu) * (cv - bv) >= -doubt
                        and (au - cu) * (v - cv) - (u - cu) * (av - cv) >= -doubt
                    )
                    v += 1
                u += 1
        if keep:
            kept_F[number] = face
            number += 1
    return number


@functools.cache
def _compiled() -> Callable[..., int]:
    import numba  # a worker without use for it does not import it

    return numba.njit(cache=True, error_model="numpy")(keep_covering)


_buffers: dict[type, np.ndarray] = {}


def _workspace(shape: tuple[int, ...], kind: type[np.generic]) -> np.ndarray:
    """An array whose content does not outlast the next call of its kind; fresh memory costs more than the work."""
    length = math.prod(shape)
    if kind not in _buffers or len(_buffers[kind]) < length:
        _buffers[kind] = np.empty(length, dtype=kind)
    return _buffers[kind][:length].reshape(shape)
