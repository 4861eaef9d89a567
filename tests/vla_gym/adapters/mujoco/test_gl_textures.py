from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vla_gym.adapters.libero.tasks import libero_benchmark
from vla_gym.system.rendering import EGL_LIBRARIES, OSMESA_LIBRARIES, library_loads
from vla_gym.workers.environment import worker_environment

pytestmark = pytest.mark.sim

SCENE = """<mujoco>
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


DRAW = """
import sys, tempfile
from pathlib import Path
import mujoco, numpy as np
from vla_gym.adapters.mujoco import model_store
from vla_gym.adapters.mujoco.gl_textures import TEXTURES
from vla_gym.adapters.mujoco.camera import Camera, Poses

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
camera, poses = picture(whole, 96)
expected_large = camera.render(poses)[0]
black, files = model_store.load_unpainted(folder / "scene", folder / "pieces")
assert not black.tex_data.any() and sorted(files) == [0, 1], files
first, first_poses = picture(black, textures=files)
assert len(TEXTURES) == 2
again, files = model_store.load_unpainted(folder / "scene", folder / "pieces")
second, second_poses = picture(again, textures=files)
assert len(TEXTURES) == 2 and not again.tex_data.any()  # shared, not read again
large, files = model_store.load_unpainted(folder / "scene", folder / "pieces")
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
"""Run in a child process with a GL context of its own."""


@pytest.mark.parametrize(("backend", "libraries"), [("osmesa", OSMESA_LIBRARIES), ("egl", EGL_LIBRARIES)])
def test_scenes_share_textures_and_look_the_same(backend: str, libraries: tuple[str, ...]) -> None:
    if not any(map(library_loads, libraries)):
        pytest.skip(f"none of {', '.join(libraries)} here")
    benchmark = libero_benchmark("LIBERO-Spatial")
    environment = worker_environment(benchmark, {**os.environ, "MUJOCO_GL": backend}, worker=0, num_workers=1)
    script = f"SCENE = {SCENE!r}\n{DRAW}"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.endswith("done\n"), done.stderr
