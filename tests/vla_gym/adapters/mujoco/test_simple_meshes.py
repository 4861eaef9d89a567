"""Meshes of fewer triangles: what the new corners look up, and how surfaces are compared; by hand."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("fast_simplification", reason="needs the libero extra")
from round_mesh import sphere

from vla_gym.adapters.mujoco import simple_meshes
from vla_gym.adapters.mujoco.simple_meshes import (
    Corners,
    directions,
    dress,
    nearest,
    simplify,
    spread,
    turn,
)

SQUARE = np.array([[[0, 0, 0], [2, 0, 0], [2, 2, 0]], [[0, 0, 0], [2, 2, 0], [0, 2, 0]]], dtype=float)
"""Two triangles that face up."""


def test_directions_and_areas() -> None:
    normal, area = directions(np.concatenate([SQUARE, SQUARE[:1, ::-1], np.zeros((1, 3, 3))]))
    np.testing.assert_array_equal(normal, [[0, 0, 1], [0, 0, 1], [0, 0, -1], [0, 0, 0]])
    np.testing.assert_array_equal(area, [2, 2, 2, 0])


def test_a_point_finds_the_triangle_under_it_and_its_weights() -> None:
    up = np.array([[0.0, 0.0, 1.0]])
    face, weight = nearest(np.array([[1.5, 0.5, 0.1]]), up, SQUARE)
    assert face.tolist() == [0]
    np.testing.assert_allclose(weight, [[0.25, 0.5, 0.25]])  # 0.25 (0, 0) + 0.5 (2, 0) + 0.25 (2, 2)
    _, weight = nearest(np.array([[3.0, 1.0, 0.0]]), up, SQUARE)
    assert weight.min() == 0  # beside the square: clamped to it
    assert weight.sum() == pytest.approx(1)


def test_of_a_thin_wall_a_point_finds_its_own_side() -> None:
    wall = np.concatenate([SQUARE, SQUARE[:, ::-1] - [0, 0, 0.01]])
    down = np.array([[0.0, 0.0, -1.0]])
    face, _ = nearest(np.array([[1.5, 0.5, 0.0]]), down, wall)
    assert face.tolist() == [2]


def test_a_large_triangle_is_found_from_its_corner_beside_many_small_ones() -> None:
    small = [SQUARE[:1] / 100 + [1.9 + k / 50, 0.2, -0.01] for k in range(20)]  # their middles are nearer than its own
    up = np.array([[0.0, 0.0, 1.0]])
    face, weight = nearest(np.array([[1.9, 0.2, 0.0]]), up, np.concatenate([SQUARE[:1], *small]))
    assert face.tolist() == [0]
    np.testing.assert_allclose(weight, [[0.05, 0.85, 0.1]], atol=1e-12)


def test_points_of_a_surface_are_spread_by_area(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simple_meshes, "NUM_SAMPLES", 10)
    sample, face = spread(np.concatenate([SQUARE[:1], SQUARE[:1] / 2 + [5, 0, 0], np.zeros((1, 3, 3))]))
    np.testing.assert_allclose(sample[:3], [[4 / 3, 2 / 3, 0], [5 + 2 / 3, 1 / 3, 0], [0, 0, 0]])  # the middles
    assert np.bincount(face).tolist() == [25, 7, 1]  # one each, and 30 as 2 to 0.5 to 0
    large = sample[3:][face[3:] == 0]
    assert (large[:, 1] >= 0).all()
    assert (large[:, 1] <= large[:, 0]).all()
    assert (large[:, 0] <= 2).all()


def test_turn_is_the_mean_of_one_minus_the_cosine() -> None:
    assert turn(SQUARE, SQUARE) == pytest.approx(0)
    assert turn(SQUARE, SQUARE[:, ::-1]) == pytest.approx(2)
    slope = SQUARE + [0, 0, 1] * SQUARE[..., :1]  # 45 degrees
    assert turn(SQUARE, slope) == pytest.approx(1 - np.sqrt(0.5))


def test_parts_that_would_shrink_stay_as_they_are() -> None:
    tiles = [SQUARE / 8 + [x / 4, y / 4, 0] for x in range(4) for y in range(4)]  # one flat pane, 1 x 1, 32 triangles
    panes = np.concatenate([np.concatenate(tiles) + np.array([2 + 1.5 * k, 0, 0]) for k in range(100)])
    ball = sphere(60)
    up = np.tile(np.float32([0, 0, 1]), (panes.size // 3, 1))
    vertices = np.concatenate([ball.vertex_C3, panes.reshape(-1, 3).astype(np.float32)])
    simple = simplify(Corners(vertices, np.concatenate([ball.normal_C3, up]), None)).triangle_F33
    flat = simple[(simple[..., 0] > 1.5).all(axis=1)]
    assert directions(flat)[1].sum() == pytest.approx(100, abs=1e-3)  # 71 if open edges were free
    assert len(simple) - len(flat) < 0.2 * len(ball.vertex_C3) / 3  # and the ball is simpler all the same


def test_new_corners_have_the_old_surface_s_values() -> None:
    mesh = Corners(
        SQUARE.reshape(-1, 3).astype(np.float32),
        np.tile(np.float32([0, 0.6, 0.8]), (6, 1)),
        (SQUARE.reshape(-1, 3)[:, :2] / 2).astype(np.float32),
    )
    middle = np.array([[[0.5, 0.5, 0], [1.5, 0.5, 0], [1.5, 1.5, 0]]])
    dressed = dress(mesh, middle)
    np.testing.assert_allclose(dressed.normal_C3, mesh.normal_C3[:3], atol=1e-6)
    # Looked up a tenth of the way towards the middle (7/6, 5/6): (0.5667, 0.5333) / 2 for the first corner.
    np.testing.assert_allclose(dressed.texcoord_C2[0], [0.28333, 0.26667], atol=1e-4)  # type: ignore[index]


def test_a_sphere_of_a_tenth_of_the_triangles_is_still_one() -> None:
    mesh = sphere(60)
    simple = simplify(mesh)
    assert len(simple.vertex_C3) == pytest.approx(0.1 * len(mesh.vertex_C3), rel=0.05)
    np.testing.assert_allclose(np.linalg.norm(simple.vertex_C3, axis=1), 1, atol=0.01)
    assert (simple.vertex_C3 * simple.normal_C3).sum(axis=1).min() > 0.99
    np.testing.assert_allclose(simple.texcoord_C2, simple.vertex_C3[:, :2], atol=0.03)  # the inset of a tenth


def test_what_cannot_keep_its_directions_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simple_meshes, "MAX_TURN", -1.0)
    mesh = sphere(40)
    assert simplify(mesh) is mesh


def test_a_mesh_without_texture_stays_without() -> None:
    mesh = sphere(30)
    assert simplify(Corners(mesh.vertex_C3, mesh.normal_C3, None)).texcoord_C2 is None
