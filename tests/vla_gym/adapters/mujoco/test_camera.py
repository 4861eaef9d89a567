"""Images drawn by our lists, triangles and shared textures are those of MuJoCo drawing everything.

The scripts run in child processes, with GL contexts of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vla_gym.adapters.libero.tasks import libero_benchmark
from vla_gym.system.rendering import EGL_LIBRARIES, OSMESA_LIBRARIES, library_loads
from vla_gym.workers.process_pool import worker_environment

pytestmark = pytest.mark.sim

SIFTED = """
import sys
import mujoco, numpy as np
from vla_gym.adapters.mujoco import gl_meshes
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
gl_meshes.MIN_FACES = 4
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
PASSES = """
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
PAINTED = """<mujoco>
  <asset>
    <texture name="a" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 1 0" width="128" height="128"/>
    <texture name="b" type="2d" builtin="gradient" rgb1="0 0 1" rgb2="1 1 1" width="128" height="128"/>
    <material name="a" texture="a"/> <material name="b" texture="b"/>
  </asset>
  <worldbody>
    <light pos="0 0 3"/> <camera name="above" pos="0 0 2"/>
    <geom type="box" size=".4 .4 .1" pos="-.4 0 0" material="a"/>
    <geom type="box" size=".4 .4 .1" pos=".4 0 0" material="b"/>
  </worldbody>
</mujoco>"""
TEXTURES = (
    f"SCENE = {PAINTED!r}"
    """
import sys, tempfile
from pathlib import Path
import mujoco, numpy as np
from vla_gym.adapters.mujoco import model_store
from vla_gym.adapters.mujoco.camera import TEXTURES, Camera, Poses

def picture(model, size=64, **options):
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera = Camera(model, ("above",), size, **options)
    return camera, Poses.of(data)

whole = mujoco.MjModel.from_xml_string(SCENE)
folder = Path(tempfile.mkdtemp())
model_store.save(whole, folder / "scene", folder / "pieces")
camera, poses = picture(whole)
expected = camera.render(poses)[0]
camera.close()
camera, poses = picture(whole, 96)
expected_large = camera.render(poses)[0]
black, files = model_store.load(folder / "scene", folder / "pieces", painted=False)
assert not black.tex_data.any() and sorted(files) == [0, 1], files
first, first_poses = picture(black, textures=files)
assert len(TEXTURES) == 2
again, files = model_store.load(folder / "scene", folder / "pieces", painted=False)
second, second_poses = picture(again, textures=files)
assert len(TEXTURES) == 2 and not again.tex_data.any()  # shared, not read again
large, files = model_store.load(folder / "scene", folder / "pieces", painted=False)
third, third_poses = picture(large, 96, textures=files)
assert len(TEXTURES) == 2 and not large.tex_data.any()
np.testing.assert_array_equal(third.render(third_poses)[0], expected_large)
third.close()
first.close()
assert len(TEXTURES) == 2
np.testing.assert_array_equal(second.render(second_poses)[0], expected)
assert expected[:, :32, 2].max() < 10 < expected[:, 32:, 2].max()  # the blue gradient is on the right alone
second.close()
assert len(TEXTURES) == 0
print("done")
"""
)
SCRIPTS = {
    "mirror": (SIFTED, "mirror", "own numbers"),
    "no mirror": (SIFTED, "no mirror", "own numbers"),
    "low list numbers": (SIFTED, "mirror", "lowest"),
    "passes": (PASSES,),
    "textures": (TEXTURES,),
}


LIBRARIES = {"egl": EGL_LIBRARIES, "osmesa": OSMESA_LIBRARIES}
OFTEN = ("egl mirror", "egl passes", "egl textures", "osmesa mirror")


@pytest.mark.parametrize(
    ("backend", "script"),
    [
        pytest.param(backend, script, marks=() if f"{backend} {script}" in OFTEN else pytest.mark.thorough)
        for backend in LIBRARIES
        for script in SCRIPTS
    ],
)
def test_images_are_those_of_mujoco_drawing_everything(backend: str, script: str) -> None:
    libraries = LIBRARIES[backend]
    if not any(map(library_loads, libraries)):
        pytest.skip(f"none of {', '.join(libraries)} here")
    benchmark = libero_benchmark("LIBERO-Spatial")
    environment = worker_environment(benchmark, {**os.environ, "MUJOCO_GL": backend}, worker=0, num_workers=1)
    command = [sys.executable, "-c", *SCRIPTS[script]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("done\n"), done.stderr
