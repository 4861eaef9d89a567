"""Meshes drawn with the triangles that cover samples: the pictures are those of MuJoCo drawing all of them."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from vla_gym.adapters.libero.tasks import libero_benchmark
from vla_gym.adapters.mujoco.gl_faces import indexed
from vla_gym.adapters.mujoco.simple_meshes import Corners
from vla_gym.system.rendering import EGL_LIBRARIES, OSMESA_LIBRARIES, library_loads
from vla_gym.workers.environment import worker_environment

pytestmark = pytest.mark.sim

DRAW = """
import sys
import mujoco, numpy as np
from vla_gym.adapters.mujoco import gl_faces
from vla_gym.adapters.mujoco.camera import Camera, Poses

def ball(scale, texture):  # closed, smooth; texture coordinates give each place two corners
    around, rise = np.meshgrid(np.arange(25), np.arange(13))
    azimuth, height = around * 2 * np.pi / 24, (rise - 6) * np.pi / 12
    place = np.stack([np.cos(azimuth) * np.cos(height), np.sin(azimuth) * np.cos(height), np.sin(height)], axis=-1)
    corner = (rise * 25 + around)[:-1, :-1].ravel()
    face = np.concatenate([[c, c + 1, c + 26, c, c + 26, c + 25] for c in corner])
    uv = np.stack([around / 24, rise / 12], axis=-1).ravel()
    texcoord = f'texcoord="{" ".join(map(str, uv))}"' if texture else ""
    return f'vertex="{" ".join(map(str, (scale * place).ravel()))}" face="{" ".join(map(str, face))}" {texcoord}'

mirror, lists = sys.argv[1] == "mirror", sys.argv[2]
MESHES = [(x, y, z) for x in (-2, -.6, 0, .7, 2.5) for y in (-1.5, .1, 1.2) for z in (.2, 1.1, 2.6)]
SHAPES = [ball(.25, True), ball(.15, False), 'vertex="0 0 0  .3 0 0  0 .3 0  0 0 .3"']
GEOMS = "".join(
    f'<geom type="mesh" mesh="m{n % 3}" pos="{x} {y} {z}" euler="{9 * n} {7 * n} 0" group="{4 * (n % 11 == 0)}" '
    + ('material="checks"/>' if n % 3 == 0 else f'rgba="{n / 45} .5 {1 - n / 45} {1 if n % 7 else .5}"/>')
    for n, (x, y, z) in enumerate(MESHES)
)
ASSETS = "".join(f'<mesh name="m{n}" {shape}/>' for n, shape in enumerate(SHAPES))
scene = f'''<mujoco><asset>{ASSETS}<material name="shiny" reflectance="{.6 * mirror}" rgba=".6 .6 .6 1"/>
    <texture name="t" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 0 1" width="64" height="64"/>
    <material name="checks" texture="t" specular="1"/></asset>
  <worldbody><light pos="0 0 4" castshadow="false"/>
    <body mocap="true" name="eye"><camera name="eye" fovy="60"/></body>
    <geom type="box" size=".4 .3 .1" material="shiny"/>
    <geom type="box" size="3 3 .1" pos="0 0 -.3" rgba=".2 .4 .2 1"/>{GEOMS}</worldbody></mujoco>'''
gl_faces.MIN_FACES = 4
model = mujoco.MjModel.from_xml_string(scene)
data = mujoco.MjData(model)
earlier, theirs = Camera(model, ("eye",), 64), Camera(model, ("eye",), 64)
from OpenGL import GL

if lists == "lowest":  # as Mesa 25 numbers them

    def lowest_free(count):
        first = next(n for n in range(1, 1 << 20) if not any(GL.glIsList(n + i) for i in range(count)))
        for name in range(first, first + count):
            GL.glNewList(name, GL.GL_COMPILE)
            GL.glEndList()
        return first

    earlier.close()  # frees low numbers
    GL.glGenLists = lowest_free
ours = Camera(model, ("eye",), 64, sift=True)
assert ours._sifted is not None and len(ours._sifted._meshes) > 40
assert len(set(map(id, ours._sifted._meshes))) == 3  # of each shape one
nearly = Camera(model, ("eye",), 64, sift=True, exact=False)

def drawn_as_skins(camera):
    scene = camera._scene
    skins = [geom.objid for geom in map(scene.geoms.__getitem__, range(scene.ngeom)) if geom.type == SKIN]
    return len(skins), sum(scene.skinfacenum[skin] for skin in skins)

SKIN = mujoco.mjtGeom.mjGEOM_SKIN
rng = np.random.default_rng(0)
drawn = gained = other_pixels = 0
for pose in range(40):
    data.mocap_pos[0] = rng.uniform(-2, 2, 3) + [0, 0, 1 + pose % 3]
    towards = data.mocap_pos[0] - rng.uniform(-1, 1, 3) * [1.5, 1.5, 0]
    mujoco.mju_quatZ2Vec(data.mocap_quat[0], towards / np.linalg.norm(towards))
    mujoco.mj_forward(model, data)
    expected = theirs.render(Poses.of(data))[0]
    np.testing.assert_array_equal(ours.render(Poses.of(data))[0], expected, err_msg=str(pose))
    other_pixels += (nearly.render(Poses.of(data))[0] != expected).any(axis=2).sum()
    (skins, faces), (more_skins, _) = drawn_as_skins(ours), drawn_as_skins(nearly)
    drawn, gained = drawn + faces, gained + more_skins - skins
assert other_pixels < 5 and gained > (300 if mirror else 100), (other_pixels, gained)
nearly.close()
assert 0 < drawn < 40 * 45 * 200, drawn
for _ in range(12):  # as a worker does that goes from task to task
    following = Camera(model, ("eye",), 64, sift=True)
    ours.close()
    ours = following
highest = GL.glGenLists(1)
assert highest < 20_000, highest  # some 800 a scene: MuJoCo's own, which no gaps may multiply
ours.close()
np.testing.assert_array_equal(theirs.render(Poses.of(data))[0], expected)  # what was lent is still there
theirs.close()
print("done")
"""
"""Run in a child process with a GL context of its own."""


@pytest.mark.parametrize("lists", ["own numbers", "lowest"])
@pytest.mark.parametrize("mirror", ["mirror", "no mirror"])
@pytest.mark.parametrize(("backend", "libraries"), [("osmesa", OSMESA_LIBRARIES), ("egl", EGL_LIBRARIES)])
def test_pictures_are_those_of_every_triangle(
    backend: str, libraries: tuple[str, ...], mirror: str, lists: str
) -> None:
    if not any(map(library_loads, libraries)):
        pytest.skip(f"none of {', '.join(libraries)} here")
    benchmark = libero_benchmark("LIBERO-Spatial")
    environment = worker_environment(benchmark, {**os.environ, "MUJOCO_GL": backend}, worker=0, num_workers=1)
    done = subprocess.run([sys.executable, "-c", DRAW, mirror, lists], env=environment, capture_output=True, text=True)
    assert done.stdout.endswith("done\n"), done.stderr


def test_equal_corners_become_one_row_and_equal_meshes_one_object() -> None:
    def square(height: float, texture: bool) -> Corners:
        place_C2 = np.array([[0, 0], [1, 0], [1, 1], [0, 0], [1, 1], [0, 1]], dtype=np.float32)
        vertex_C3 = np.insert(place_C2, 2, np.float32(height), axis=1)
        texcoord_C2 = np.zeros((6, 2), np.float32)
        texcoord_C2[3] = 1  # the corner at (0, 0) has another colour in the second triangle
        return Corners(vertex_C3, np.tile(np.float32([0, 0, 1]), (6, 1)), texcoord_C2 if texture else None)

    plain, textured = indexed(square(0, False)), indexed(square(0, True))
    assert plain.corner_F3.tolist() == [[0, 1, 2], [0, 2, 3]]
    assert plain.row_RK.tolist() == [[0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 1], [1, 1, 0, 0, 0, 1], [0, 1, 0, 0, 0, 1]]
    assert textured.corner_F3.tolist() == [[0, 1, 2], [3, 2, 4]]
    assert textured.row_RK.shape == (5, 8)
    assert indexed(square(0, False)) is plain
    assert indexed(square(1, False)) is not plain
