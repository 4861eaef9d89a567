"""Simplified meshes on disk, and that a mesh drawn in place of itself gives the same picture."""

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
from round_mesh import sphere

from vla_gym.adapters.libero.tasks import libero_benchmark
from vla_gym.adapters.mujoco import simple_store
from vla_gym.adapters.mujoco.simple_store import mesh_corners, simple_meshes
from vla_gym.workers.environment import worker_environment

pytestmark = pytest.mark.sim


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

    def simplify(mesh: simple_store.Corners) -> simple_store.Corners:
        made.append(len(mesh.vertex_C3))
        return mesh

    monkeypatch.setattr(simple_store, "simplify", simplify)
    first = simple_meshes(model, tmp_path, hidden_groups=(3,))
    assert sorted(first) == [model.mesh("dressed").id, model.mesh("bare").id]
    assert made == [3 * model.mesh_facenum[0]] * 2
    again = simple_meshes(model, tmp_path, hidden_groups=(3,))
    assert len(made) == 2
    for mesh in first:
        np.testing.assert_array_equal(again[mesh].vertex_C3, first[mesh].vertex_C3)
        np.testing.assert_array_equal(again[mesh].normal_C3, mesh_corners(model, mesh).normal_C3)
    assert again[model.mesh("bare").id].texcoord_C2 is None
    damaged = max(tmp_path.glob("??/*"), key=lambda file: file.stat().st_size)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    assert len(simple_meshes(model, tmp_path, hidden_groups=(3,))) == 2
    assert len(made) == 3


def test_small_meshes_stay_as_they_are(tmp_path: Path) -> None:
    model = mujoco.MjModel.from_xml_string(scene(rings=20))  # 1560 triangles
    assert simple_meshes(model, tmp_path) == {}


DRAW = """
import sys
import mujoco, numpy as np
from vla_gym.adapters.mujoco.camera import Camera, Poses
from vla_gym.adapters.mujoco.simple_meshes import simplify
from vla_gym.adapters.mujoco.simple_store import mesh_corners as corners

def picture(meshes):
    model = mujoco.MjModel.from_xml_path(sys.argv[1])
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera = Camera(model, ("above",), 64, hidden_groups=(3,), meshes={m: change(corners(model, m)) for m in meshes})
    assert (model.mesh_facenum > 2000).all()
    picture = camera.render(Poses.of(data))[0]
    camera.close()
    return picture

change = lambda mesh: mesh
expected = picture(())
assert expected.std() > 20
np.testing.assert_array_equal(picture((0, 1)), expected)
change = simplify
error = ((picture((0, 1)).astype(float) - expected) ** 2).mean()
assert 0 < error < 40, error  # 32 dB
print("done")
"""


def test_a_mesh_in_place_of_itself_looks_the_same(tmp_path: Path) -> None:
    (tmp_path / "scene.xml").write_text(scene())
    environment = worker_environment(libero_benchmark("LIBERO-Spatial"), os.environ, worker=0, num_workers=1)
    command = [sys.executable, "-c", DRAW, str(tmp_path / "scene.xml")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.endswith("done\n"), done.stderr
