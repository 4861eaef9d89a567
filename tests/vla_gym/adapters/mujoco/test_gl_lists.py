"""Meshes drawn in one pass only: the pictures are those of MuJoCo drawing everything in all of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vla_gym.adapters.libero.tasks import libero_benchmark
from vla_gym.system.rendering import EGL_LIBRARIES, OSMESA_LIBRARIES, library_loads
from vla_gym.workers.environment import worker_environment

pytestmark = pytest.mark.sim

DRAW = """
import mujoco, numpy as np
from vla_gym.adapters.mujoco.camera import Camera, Poses

TETRAHEDRON = "0 0 0  .3 0 0  0 .3 0  0 0 .3"
MESHES = [(x, y, z) for x in (-2, -.6, 0, .7, 2.5) for y in (-1.5, .1, 1.2) for z in (.2, 1.1, 2.6)]
GEOMS = "".join(
    f'<geom type="mesh" mesh="m{n % 20}" pos="{x} {y} {z}" rgba="{n / 45} .5 {1 - n / 45} {1 if n % 9 else .5}"/>'
    for n, (x, y, z) in enumerate(MESHES)
)
ASSETS = "".join(f'<mesh name="m{n}" vertex="{TETRAHEDRON}" scale="{1 + n / 20} 1 1"/>' for n in range(20))
scene = f'''<mujoco><asset>{ASSETS}<material name="shiny" reflectance=".6" rgba=".6 .6 .6 1"/>
    <texture type="skybox" builtin="gradient" rgb1=".3 .5 .7" rgb2="0 0 0" width="32" height="32"/></asset>
  <worldbody><light pos="0 0 4" castshadow="false"/>
    <body mocap="true" name="eye"><camera name="eye" fovy="60"/></body>
    <geom type="box" size=".4 .3 .1" material="shiny"/>
    <geom type="box" size=".3 .4 .1" pos="1 0 0" material="shiny"/>
    <site name="mark" size=".8" rgba="1 0 0 1"/> <site size=".2" pos="1 0 .3" rgba="1 0 0 .5"/>
    <geom type="box" size="3 3 .1" pos="0 0 -.3" rgba=".2 .4 .2 1"/>{GEOMS}</worldbody></mujoco>'''
model = mujoco.MjModel.from_xml_string(scene)
model.site("mark").rgba[3] = -0.3  # as robosuite's: nothing is seen of it
data = mujoco.MjData(model)
camera = Camera(model, ("eye",), 64)
theirs = mujoco.MjvScene(model, maxgeom=200)
rng = np.random.default_rng(0)
seen = {}
for pose in range(60):
    data.mocap_pos[0] = rng.uniform(-2, 2, 3) + [0, 0, 1 + pose % 3]
    towards = data.mocap_pos[0] - rng.uniform(-1, 1, 3) * [1.5, 1.5, 0]
    mujoco.mju_quatZ2Vec(data.mocap_quat[0], towards / np.linalg.norm(towards))
    mujoco.mj_forward(model, data)
    Poses.of(data).put(camera._data)
    camera._filled(theirs, camera._views[0])
    mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, camera._resources)
    mujoco.mjr_render(camera._viewport, theirs, camera._resources)
    expected = np.empty((64, 64, 3), np.uint8)
    mujoco.mjr_readPixels(expected, None, camera._viewport, camera._resources)
    np.testing.assert_array_equal(camera.render(Poses.of(data))[0], expected, err_msg=str(pose))
    shown = [camera._scene.geoms[n] for n in range(camera._scene.ngeom)]
    assert [geom.rgba[3] for geom in shown if geom.objtype == mujoco.mjtObj.mjOBJ_SITE] == [0.5]
    sight = camera._sight.seen(data, 0)
    mesh = model.geom_type == mujoco.mjtGeom.mjGEOM_MESH
    for direct, mirrored in zip(sight.direct_G[mesh], sight.mirrored_G[mesh]):
        seen[direct, mirrored] = seen.get((direct, mirrored), 0) + 1
    seen["mirror out of view"] = seen.get("mirror out of view", 0) + (sight.reflects and not sight.direct_G[0])
    seen["no reflection"] = seen.get("no reflection", 0) + (not sight.reflects)
assert len(seen) == 6 and min(seen.values()) > 0, seen
camera.close()
print("done")
"""
"""Run in a child process with a GL context of its own."""


@pytest.mark.parametrize(("backend", "libraries"), [("osmesa", OSMESA_LIBRARIES), ("egl", EGL_LIBRARIES)])
def test_pictures_are_those_of_everything_drawn(backend: str, libraries: tuple[str, ...]) -> None:
    if not any(map(library_loads, libraries)):
        pytest.skip(f"none of {', '.join(libraries)} here")
    benchmark = libero_benchmark("LIBERO-Spatial")
    environment = worker_environment(benchmark, {**os.environ, "MUJOCO_GL": backend}, worker=0, num_workers=1)
    done = subprocess.run([sys.executable, "-c", DRAW], env=environment, capture_output=True, text=True)
    assert done.stdout.endswith("done\n"), done.stderr
