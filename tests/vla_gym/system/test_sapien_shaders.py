from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vla_gym.system.sapien_shaders import DECLARATION, LOOK_UP, STOCK, light_shaders, without_table

DRAW = """
import hashlib, sys, sapien
from vla_gym.system.sapien_shaders import PICTURE_FORMATS
sapien.render.set_camera_shader_dir(sys.argv[1])
for name, layout in PICTURE_FORMATS.items():
    sapien.render.set_picture_format(name, layout)
scene = sapien.Scene([sapien.physx.PhysxCpuSystem(), sapien.render.RenderSystem(sapien.Device("cpu"))])
scene.set_ambient_light([0.3] * 3)
scene.add_directional_light([1, 1, -1], [0.7] * 3)
builder = scene.create_actor_builder()
builder.add_sphere_visual(radius=0.4, material=sapien.render.RenderMaterial(base_color=[1, 0.4, 0.2, 1]))
builder.build_static("ball").pose = sapien.Pose([1, 0, 0])
camera = scene.add_camera("eye", 48, 32, 1.2, 0.01, 10)
scene.update_render()
camera.take_picture()
picture = camera.get_picture("Color")
print(bool(picture[..., 0].std() > 20), hashlib.sha256(picture.tobytes()).hexdigest())
"""


def test_declaration_and_look_up_go_and_nothing_else() -> None:
    source = f"vec4 a;\nlayout(set = 3, binding = 8) {DECLARATION}\nvec2 e = {LOOK_UP};\nvec3 c;"
    assert without_table(source) == "vec4 a;\nvec2 e = vec2(0.0);\nvec3 c;\n"


@pytest.mark.sim
def test_the_folder_is_made_once_and_draws_the_same_picture(tmp_path: Path) -> None:
    sapien = pytest.importorskip("sapien")
    del sapien
    folder = light_shaders(tmp_path)
    assert folder != STOCK
    assert light_shaders(tmp_path) == folder
    drawn = [
        subprocess.run([sys.executable, "-c", DRAW, name], capture_output=True, text=True, check=False)
        for name in (STOCK, folder)
    ]
    if any(process.returncode for process in drawn):
        pytest.skip(f"no Vulkan driver that can draw here: {drawn[0].stderr.strip()[-200:]}")
    assert drawn[0].stdout.startswith("True ")
    assert drawn[0].stdout == drawn[1].stdout
