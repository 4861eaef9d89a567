"""Which triangles of a mesh can colour a sample of a picture; leaving out the others is exact, or nearly so.

GL colours a sample where a triangle that faces the camera covers the sample's point. A triangle is left out where it
cannot, with a margin for the places that GL gives its corners: computed in float32, then rounded to parts of a pixel.
Scanned objects and CAD robots have several triangles a sample, so most of theirs cover none.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import mujoco
import numpy as np

from vla_gym.adapters.mujoco.sight import Mirror

SLIP = 1e-5
"""Metres by which float32 may misplace a corner in front of the camera, in scenes of some 10 m."""
ROUNDING = 1e-3
"""Pixels that `keep_covering` itself may be out, in pictures of up to 4,096."""
CLOSE = 2.0
"""Corners nearer than so many times the distance up to which GL clips, or farther than the same share of the distance
from which it does, count as out of view."""
SMALL = 2.0
"""Pixels: larger triangles in view count as covering a sample."""
ANYWHERE = 1e9
"""Pixels by which a corner may be misplaced that is too near or far to tell where it is."""


@dataclass(frozen=True)
class Samples:
    """How GL samples a picture."""

    point_S2: np.ndarray
    """In a pixel, from its lower left corner."""
    step: float
    """Pixels to which the places of corners are rounded."""


@dataclass(frozen=True)
class Lens:
    """A camera's pose and its square picture.

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
        """The lens behind the mirror, whose picture has left and right exchanged."""

        def turned(vector: np.ndarray) -> np.ndarray:
            flipped: np.ndarray = vector - 2 * (vector @ mirror.normal_3)[..., None] * mirror.normal_3
            return flipped

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


class Sieve:
    """A mesh of which each picture gets the triangles that may cover a sample.

    Args:
        vertex_V3: float32 positions in the mesh's frame.
        face_F3: uint32 rows of `vertex_V3`, counter-clockwise from in front.
    """

    def __init__(self, vertex_V3: np.ndarray, face_F3: np.ndarray) -> None:
        self._mesh = np.ascontiguousarray(vertex_V3), np.ascontiguousarray(face_F3)

    def covering(
        self, frame_33: np.ndarray, origin_3: np.ndarray, lens: Lens, *, exact: bool = True
    ) -> np.ndarray | None:
        """Return which triangles may cover a sample, uint32, rising.

        Args:
            frame_33: axes of the mesh's frame in the world, in columns.
            origin_3: its origin.
            lens: the camera.
            exact: return None where the mesh is not wholly in view. There GL may take other ways from corners to pixels
                for triangles that share a batch with clipped ones, and round otherwise: who leaves out some changes
                what becomes of others, by a pixel in some hundred pictures.
        """
        turn_33 = lens.axis_33 @ frame_33.astype(np.float64)
        shift_3 = lens.axis_33 @ (origin_3.astype(np.float64) - lens.origin_3)
        inexact = lens.samples.step + ROUNDING, SLIP * (1 + lens.slope)
        view = np.array([lens.focal, lens.size, CLOSE * lens.near, lens.far / CLOSE, *inexact])
        vertex_V3, face_F3 = self._mesh
        place_V3, kept_F = _workspace(vertex_V3.shape, np.float32), _workspace(face_F3.shape[:1], np.uint32)
        number = _compiled()(*self._mesh, turn_33, shift_3, view, exact, lens.samples.point_S2, place_V3, kept_F)
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
        vertex_V3: as of `Sieve`, and so the next.
        face_F3: see there.
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

    compiled: Callable[..., int] = numba.njit(cache=True, error_model="numpy")(keep_covering)
    return compiled


_buffers: dict[type, np.ndarray] = {}


def _workspace(shape: tuple[int, ...], kind: type[np.generic]) -> np.ndarray:
    """An array whose content does not outlast the next call of its kind; fresh memory costs more than the work."""
    length = math.prod(shape)
    if kind not in _buffers or len(_buffers[kind]) < length:
        _buffers[kind] = np.empty(length, dtype=kind)
    return _buffers[kind][:length].reshape(shape)
