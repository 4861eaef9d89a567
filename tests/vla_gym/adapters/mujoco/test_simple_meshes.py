"""Meshes of fewer triangles: what the new corners look up, and how surfaces are compared; by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mujoco", reason="needs the libero extra")
pytest.importorskip("fast_simplification", reason="needs the libero extra")
import mujoco

from vla_gym.adapters.libero.tasks import libero_benchmark
from vla_gym.adapters.mujoco import simple_meshes as module
from vla_gym.adapters.mujoco.simple_meshes import (
    Corners,
    directions,
    drawn_triangles,
    dress,
    mesh_corners,
    nearest,
    simplify,
    turn,
)
from vla_gym.workers.process_pool import worker_environment

pytestmark = pytest.mark.sim

SQUARE = np.array([[[0, 0, 0], [2, 0, 0], [2, 2, 0]], [[0, 0, 0], [2, 2, 0], [0, 2, 0]]], dtype=float)
"""Two triangles that face up."""


def sphere(rings: int) -> Corners:
    """A unit sphere of 4 rings^2 triangles; the texture's u is x, so that looked-up values can be checked."""
    turns, heights = np.meshgrid(np.linspace(0, 2 * np.pi, 2 * rings + 1), np.linspace(0, np.pi, rings + 1))
    grid = np.stack([np.sin(heights) * np.cos(turns), np.sin(heights) * np.sin(turns), np.cos(heights)], axis=-1)
    a, b, c, d = grid[:-1, :-1], grid[1:, :-1], grid[1:, 1:], grid[:-1, 1:]
    vertex_C3 = np.concatenate([np.stack([a, b, c], axis=2), np.stack([a, c, d], axis=2)]).reshape(-1, 3)
    vertex_C3 = np.where(np.abs(vertex_C3) < 1e-9, 0.0, vertex_C3).astype(np.float32)
    return Corners(vertex_C3, vertex_C3, vertex_C3[:, :2].copy())


def test_a_point_finds_the_triangle_under_it_and_its_weights() -> None:
    up = np.array([[0.0, 0.0, 1.0]])
    face, weight = nearest(np.array([[1.5, 0.5, 0.1]]), up, SQUARE)
    assert face.tolist() == [0]
    np.testing.assert_allclose(weight, [[0.25, 0.5, 0.25]])  # 0.25 (0, 0) + 0.5 (2, 0) + 0.25 (2, 2)
    _, weight = nearest(np.array([[3.0, 1.0, 0.0]]), up, SQUARE)
    assert weight.min() == 0  # beside the square: clamped to it
    assert weight.sum() == pytest.approx(1)


def test_a_large_triangle_is_found_from_its_corner_beside_many_small_ones() -> None:
    small = [SQUARE[:1] / 100 + [1.9 + k / 50, 0.2, -0.01] for k in range(20)]  # their middles are nearer than its own
    up = np.array([[0.0, 0.0, 1.0]])
    face, weight = nearest(np.array([[1.9, 0.2, 0.0]]), up, np.concatenate([SQUARE[:1], *small]))
    assert face.tolist() == [0]
    np.testing.assert_allclose(weight, [[0.05, 0.85, 0.1]], atol=1e-12)


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


def scene(rings: int = 25) -> str:
    """A ball of 4 rings^2 triangles, with a texture and without, and a group that is not drawn."""
    ball = sphere(rings)
    vertex_V3, face_C = np.unique(ball.vertex_C3.round(6), axis=0, return_inverse=True)
    faces = face_C.reshape(-1, 3)
    faces = faces[(faces != np.roll(faces, 1, axis=1)).all(axis=1)]
    vertex, face = (" ".join(map(str, part.ravel().tolist())) for part in (vertex_V3, faces))
    texcoord = " ".join(map(str, vertex_V3[:, :2].ravel().tolist()))
    return f"""<mujoco>
      <asset>
        <texture name="a" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 1 0" width="64" height="64"/>
        <material name="a" texture="a"/>
        <mesh name="dressed" vertex="{vertex}" face="{face}" texcoord="{texcoord}"/>
        <mesh name="bare" vertex="{vertex}" face="{face}"/>
        <mesh name="unseen" vertex="{vertex}" face="{face}" scale="2 2 2"/>
      </asset>
      <worldbody>
        <light pos="0 0 5" castshadow="false"/><camera name="above" pos="0 0 5"/>
        <geom type="mesh" mesh="dressed" pos="-1 0 0" material="a"/><geom type="mesh" mesh="bare" pos="1 0 0"/>
        <geom type="mesh" mesh="unseen" group="3"/>
      </worldbody>
    </mujoco>"""


def test_drawn_meshes_are_simplified_once_and_again_where_the_file_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mujoco.MjModel.from_xml_string(scene())
    made: list[int] = []

    def simplify(mesh: Corners) -> Corners:
        made.append(len(mesh.vertex_C3))
        return mesh

    monkeypatch.setattr(module, "simplify", simplify)
    dressed, bare = model.mesh("dressed").id, model.mesh("bare").id
    first = {mesh: drawn_triangles(model, mesh, tmp_path) for mesh in (dressed, bare)}
    assert made == [3 * model.mesh_facenum[0]] * 2
    again = {mesh: drawn_triangles(model, mesh, tmp_path) for mesh in first}
    assert len(made) == 2
    for mesh in first:
        np.testing.assert_array_equal(again[mesh].vertex_C3, first[mesh].vertex_C3)
        np.testing.assert_array_equal(again[mesh].normal_C3, mesh_corners(model, mesh).normal_C3)
    assert again[bare].texcoord_C2 is None
    damaged = max(tmp_path.glob("??/*"), key=lambda file: file.stat().st_size)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    for mesh in first:
        drawn_triangles(model, mesh, tmp_path)
    assert len(made) == 3


DRAW = """
import sys, tempfile
from pathlib import Path
import mujoco, numpy as np
from vla_gym.adapters.mujoco import simple_meshes
from vla_gym.adapters.mujoco.camera import Camera, Poses

def picture(simple=None):
    model = mujoco.MjModel.from_xml_path(sys.argv[1])
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera = Camera(model, ("above",), 64, hidden_groups=(3,), simple=simple)
    assert (model.mesh_facenum > 2000).all()
    picture = camera.render(Poses.of(data))[0]
    camera.close()
    return picture

simplify, simple_meshes.simplify = simple_meshes.simplify, lambda mesh: mesh
expected = picture()
assert expected.std() > 20
np.testing.assert_array_equal(picture(Path(tempfile.mkdtemp())), expected)
simple_meshes.simplify = simplify
error = ((picture(Path(tempfile.mkdtemp())).astype(float) - expected) ** 2).mean()
assert 0 < error < 40, error  # 32 dB
print("done")
"""


def test_a_mesh_in_place_of_itself_looks_the_same(tmp_path: Path) -> None:
    (tmp_path / "scene.xml").write_text(scene())
    environment = worker_environment(libero_benchmark("LIBERO-Spatial"), os.environ, worker=0, num_workers=1)
    command = [sys.executable, "-c", DRAW, str(tmp_path / "scene.xml")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.endswith("done\n"), done.stderr
