"""Triangles that may cover a sample, in pictures of 8 x 8 px that show 90 degrees: 4 px a metre at 1 m."""

from __future__ import annotations

import numpy as np
import pytest

from vla_gym.adapters.mujoco import covering
from vla_gym.adapters.mujoco.covering import Lens, Samples, Sieve, keep_covering
from vla_gym.adapters.mujoco.sight import Mirror

pytestmark = pytest.mark.sim  # MuJoCo and Numba come with the simulators

CENTRES = Samples(np.array([[0.5, 0.5]]), 1 / 256)
LENS = Lens(np.zeros(3), np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, -1]]), 4.0, 1.0, 0.01, 10.0, 8, CENTRES)
"""Looks along -z."""


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(covering, "_compiled", lambda: keep_covering)


def kept(
    *triangles: list[tuple[float, float]], lens: Lens = LENS, depth: float = 1.0, exact: bool = True
) -> list[int] | None:
    """Which triangles, corners in pixels of `LENS`, are kept when they lie at `depth` before it."""
    pixel_F32 = np.array(triangles)
    place_F32 = (pixel_F32 - 4) / 4 * depth
    vertex_V3 = np.concatenate([place_F32, np.full((len(triangles), 3, 1), -depth)], axis=2).reshape(-1, 3)
    face_F3 = np.arange(len(vertex_V3), dtype=np.uint32).reshape(-1, 3)
    found_F = Sieve(vertex_V3.astype(np.float32), face_F3).covering(np.eye(3), np.zeros(3), lens, exact=exact)
    return None if found_F is None else found_F.tolist()


AROUND = [(2.3, 2.3), (2.9, 2.3), (2.5, 2.9)]
"""Around the middle of pixel (2, 2), counter-clockwise."""
BESIDE = [(2.6, 2.6), (2.9, 2.6), (2.7, 2.9)]
CORNER_CUT = [(2.3, 2.3), (2.7, 2.3), (2.3, 2.6)]
"""Its box has the middle; the edge from (2.7, 2.3) to (2.3, 2.6) leaves it outside: at u 2.5 it is at v 2.45."""


def test_only_what_covers_a_sample_is_kept() -> None:
    assert kept(AROUND, BESIDE, CORNER_CUT, AROUND) == [0, 3]


def test_backs_are_left_out() -> None:
    assert kept(AROUND[::-1], AROUND) == [1]


def test_a_mesh_partly_out_of_view_stays_whole() -> None:
    assert kept(AROUND, [(u + 5, v) for u, v in AROUND], BESIDE) == [0, 1]
    for out in ([(u + 5.2, v) for u, v in AROUND], [(u, v - 2.4) for u, v in AROUND]):
        assert kept(AROUND, out, BESIDE) is None
    assert kept(BESIDE, depth=0.015) is None  # GL clips up to 0.01
    assert kept(BESIDE, depth=6) is None  # and from 10


def test_of_a_mesh_partly_out_of_view_what_lies_outside_is_left_out_on_demand() -> None:
    across = [(7.3, 2.3), (9.9, 2.3), (7.5, 2.9)]
    for out in ([(u + 6, v) for u, v in AROUND], [(u - 3, v) for u, v in AROUND], [(u, v - 3) for u, v in AROUND]):
        assert kept(AROUND, out, BESIDE, across, exact=False) == [0, 3]
    assert kept(AROUND, BESIDE, depth=0.015, exact=False) == [0, 1]  # who knows
    assert kept(AROUND, AROUND[::-1], exact=False) == [0]


def test_a_mirror_shows_what_is_before_it_from_the_other_side() -> None:
    """A mirror at z = -3 that looks back at the camera: the lens behind it sees a triangle at z = -1 from 5 m away."""
    mirror = Mirror(np.array([0.0, 0, 1]), np.array([0.0, 0, -3]))
    lens = LENS.mirrored(mirror)
    np.testing.assert_allclose(lens.origin_3, [0, 0, -6])
    np.testing.assert_allclose(lens.axis_33, [[-1, 0, 0], [0, 1, 0], [0, 0, 1]])
    left_half = Lens(**{**vars(LENS), "samples": Samples(np.array([[0.2, 0.5]]), 1 / 256)}).mirrored(mirror)
    np.testing.assert_allclose(left_half.samples.point_S2, [[0.8, 0.5]])

    # Pixel u of LENS at 1 m is x = (u - 4) / 4, which the mirrored picture has at u' = 4 - 4 x / 5 = 4 - (u - 4) / 5.
    def seen(u: float, v: float) -> tuple[float, float]:
        return 4 - 5 * (u - 4), 4 + 5 * (v - 4)

    around, beside = ([seen(u, v) for u, v in triangle] for triangle in (AROUND, BESIDE))
    assert kept(around, around[::-1], beside, lens=lens) == [0]  # counter-clockwise from behind, where the lens is


def test_in_doubt_a_triangle_is_kept() -> None:
    nearly = [(2.5 + 1 / 300, 2.3), (2.9, 2.3), (2.5 + 1 / 300, 2.9)]  # 1/300 px beside the middle
    large_but_thin = [(0.6, 0.6), (3.4, 0.6), (3.4, 0.61)]
    assert kept(nearly, BESIDE, large_but_thin) == [0, 2]


def test_every_sample_counts() -> None:
    second = Lens(**{**vars(LENS), "samples": Samples(np.array([[0.5, 0.5], [0.7, 0.7]]), 1 / 256)})
    assert kept(BESIDE, lens=second) == [0]


def test_nothing_that_covers_a_sample_is_left_out() -> None:
    rng = np.random.default_rng(0)
    pattern_S2 = np.array([[0.375, 0.125], [0.875, 0.375], [0.125, 0.625], [0.625, 0.875]])
    lens = Lens(**{**vars(LENS), "samples": Samples(pattern_S2, 1 / 256)})
    triangle_F32 = rng.uniform(0.7, 7.3, (400, 1, 2)) + rng.uniform(-0.6, 0.6, (400, 3, 2))
    pixel_P2 = np.stack(np.meshgrid(np.arange(8), np.arange(8)), axis=-1).reshape(-1, 2)
    point_P2 = (pixel_P2[:, None] + pattern_S2).reshape(-1, 2)

    def side(first_F2: np.ndarray, second_F2: np.ndarray) -> np.ndarray:
        edge_F2, to_FP2 = second_F2 - first_F2, point_P2 - first_F2[:, None]
        return edge_F2[:, None, 0] * to_FP2[..., 1] - to_FP2[..., 0] * edge_F2[:, None, 1]

    corners = triangle_F32.swapaxes(0, 1)
    inside_FP = np.all([side(corners[n], corners[(n + 1) % 3]) > 0 for n in range(3)], axis=0)
    covers = set(np.flatnonzero(inside_FP.any(axis=1)).tolist())
    found = set(kept(*triangle_F32.tolist(), lens=lens) or [])
    assert covers <= found
    assert len(found) < len(covers) * 1.4 < 150  # of 400, half of which show their backs
