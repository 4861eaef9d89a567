from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import vla_gym
from vla_gym.errors import MissingDependency
from vla_gym.system import vulkan

VERSION = "105.1-physx-5.3.1.patch0"
DRAW = """
import hashlib, sys, sapien
from vla_gym.system.vulkan import IMAGE_FORMATS
sapien.render.set_camera_shader_dir(sys.argv[1])
for name, layout in IMAGE_FORMATS.items():
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
image = camera.get_picture("Color")
print(bool(image[..., 0].std() > 20), hashlib.sha256(image.tobytes()).hexdigest())
"""


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Device -> why it cannot draw; those left out can. There is one GPU, and everything else is installed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    causes: dict[str, str] = {}
    monkeypatch.setattr(vulkan, "why_not", lambda device, drivers: causes.get(device, ""))
    monkeypatch.setattr(vulkan, "num_gpus", lambda: 1)
    monkeypatch.setattr(vulkan, "library_loads", lambda name: name == "libcuda.so")
    monkeypatch.setattr(vulkan, "probe_physics", lambda: (VERSION, True))
    library = tmp_path / ".sapien" / "physx" / VERSION / "libPhysXGpu_64.so"
    library.parent.mkdir(parents=True)
    library.touch()
    return causes


def test_the_gpu_comes_first_and_software_after_it(answers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert vulkan.sapien_environment({}) == {"VLA_ZOO_SAPIEN_DEVICE": "cuda"}
    answers["cuda"] = "SIGSEGV"
    assert vulkan.sapien_device({}) == "cpu"
    answers["cpu"] = "no driver"
    with pytest.raises(MissingDependency, match=r"cuda: SIGSEGV; cpu: no driver.*apt-get install mesa-vulkan"):
        vulkan.sapien_device({})
    monkeypatch.setattr(vulkan, "num_gpus", lambda: 0)
    del answers["cpu"]
    assert vulkan.sapien_device({}) == "cpu"


def test_the_user_s_choice_stands_even_when_it_fails(answers: dict[str, str]) -> None:
    assert vulkan.sapien_device({"VLA_ZOO_SAPIEN_DEVICE": "cuda"}) == "cuda"
    answers["cuda"] = "no such device"
    with pytest.raises(MissingDependency, match=r"\(cuda: no such device\)"):
        vulkan.sapien_device({"VLA_ZOO_SAPIEN_DEVICE": "cuda"})


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        ("", ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import time; time.sleep(60)", "no image in 1 s"),
    ],
)
def test_a_crash_stays_in_the_child(program: str, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan, "IMAGE_PROBE", program)
    monkeypatch.setattr(vulkan, "PROBE_SECONDS", 1.0 if "sleep" in program else 60.0)
    assert vulkan.why_not.__wrapped__("cpu", ()) == cause


def test_physics_and_images_are_on_the_rank_s_own_gpu(answers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert vulkan.gpu_physics_environment({}) == {"VLA_ZOO_SAPIEN_DEVICE": "cuda"}
    monkeypatch.setattr("vla_gym.system.rendering.num_gpus", lambda: 4)
    asked = {"LOCAL_RANK": "6", "VLA_ZOO_SAPIEN_DEVICE": "cuda"}
    assert vulkan.gpu_physics_environment(asked) == {"VLA_ZOO_SAPIEN_DEVICE": "cuda:2"}
    asked["VLA_ZOO_SAPIEN_DEVICE"] = "cuda:1"
    assert vulkan.gpu_physics_environment(asked) == {"VLA_ZOO_SAPIEN_DEVICE": "cuda:1"}


def test_everything_that_gpu_physics_lack_is_named_in_one_line(
    answers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert vulkan.gpu_physics_missing("cuda", ()) == []
    answers["cuda"] = "SIGSEGV"
    (phrase,) = vulkan.gpu_physics_missing("cuda", ())
    assert "Vulkan driver that draws on the GPU (SIGSEGV" in phrase
    monkeypatch.setattr(vulkan, "library_loads", lambda name: False)
    monkeypatch.setattr(vulkan, "probe_physics", lambda: ("7", False))
    with pytest.raises(MissingDependency) as caught:
        vulkan.gpu_physics_environment({"VLA_ZOO_SAPIEN_DEVICE": "cpu"})
    for named in (
        "libcuda.so",
        "PyTorch sees no CUDA",
        "/7/linux-so.zip",
        "VLA_ZOO_SAPIEN_DEVICE=cpu",
        "physics='gpu'",
    ):
        assert named in str(caught.value)


@pytest.mark.sim
def test_a_machine_without_a_driver_or_a_gpu_says_so() -> None:
    pytest.importorskip("mani_skill")
    import torch

    nowhere = dict.fromkeys(("VK_DRIVER_FILES", "VK_ICD_FILENAMES"), "/nowhere.json")
    with pytest.raises(MissingDependency, match=r"Mesa >= 24\.3.*apt-get install"):
        vulkan.sapien_device({**nowhere, "VLA_ZOO_SAPIEN_DEVICE": "cpu"})
    if not torch.cuda.is_available():
        with pytest.raises(MissingDependency, match="PyTorch sees no CUDA device"):
            vla_gym.make_vec("ManiSkill/PickCube", 4, physics="gpu")


@pytest.mark.thorough  # the stock shaders take 7 s
@pytest.mark.sim
def test_light_shaders_draw_the_same_image(tmp_path: Path) -> None:
    pytest.importorskip("sapien")
    source = f"vec4 a;\n{vulkan.TABLE_DECLARATION}\nvec2 e = {vulkan.TABLE_READING};\nvec3 c;"
    assert vulkan.without_table(source) == "vec4 a;\nvec2 e = vec2(0.0);\nvec3 c;\n"
    folder = vulkan.light_shaders(tmp_path)
    assert folder == vulkan.light_shaders(tmp_path) != vulkan.STOCK
    drawn = [
        subprocess.run([sys.executable, "-c", DRAW, name], capture_output=True, text=True, check=False)
        for name in (vulkan.STOCK, folder)
    ]
    if any(process.returncode for process in drawn):
        pytest.skip(f"no Vulkan driver that can draw here: {drawn[0].stderr.strip()[-200:]}")
    assert drawn[0].stdout.startswith("True ")
    assert drawn[0].stdout == drawn[1].stdout
