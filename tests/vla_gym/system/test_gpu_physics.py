from __future__ import annotations

from pathlib import Path

import pytest

import vla_gym
from vla_gym.errors import MissingDependency
from vla_gym.system import gpu_physics

VERSION = "105.1-physx-5.3.1.patch0"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine that has everything; returns the file of its PhysX library."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(gpu_physics, "library_loads", lambda name: name == "libcuda.so")
    monkeypatch.setattr(gpu_physics, "probe", lambda: (VERSION, True))
    monkeypatch.setattr(gpu_physics, "why_not", lambda device, drivers: "")
    library = tmp_path / ".sapien" / "physx" / VERSION / "libPhysXGpu_64.so"
    library.parent.mkdir(parents=True)
    library.touch()
    return library


def test_where_nothing_is_missing_pictures_are_drawn_on_the_gpu(machine: Path) -> None:
    assert gpu_physics.gpu_physics_environment({}) == {"VLA_ZOO_SAPIEN_DEVICE": "cuda"}


def test_each_thing_that_is_missing_is_named_alone(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (said,) = gpu_physics.gpu_physics_missing({"VLA_ZOO_SAPIEN_DEVICE": "cpu"})
    assert said.startswith("VLA_ZOO_SAPIEN_DEVICE=cpu")
    with monkeypatch.context() as patch:
        patch.setattr(gpu_physics, "why_not", lambda device, drivers: f"{device} {drivers}: SIGSEGV")
        (said,) = gpu_physics.gpu_physics_missing({"VK_DRIVER_FILES": "/a.json", "HOME": "/h"})
    assert "no Vulkan driver that draws on the GPU (cuda (('VK_DRIVER_FILES', '/a.json'),): SIGSEGV" in said
    with monkeypatch.context() as patch:
        patch.setattr(gpu_physics, "probe", lambda: (VERSION, False))
        (said,) = gpu_physics.gpu_physics_missing({})
    assert said.startswith("PyTorch sees no CUDA device")
    with monkeypatch.context() as patch:
        patch.setattr(gpu_physics, "library_loads", lambda name: False)
        (said,) = gpu_physics.gpu_physics_missing({})
    assert said.startswith("no NVIDIA driver (libcuda.so")
    machine.unlink()
    (said,) = gpu_physics.gpu_physics_missing({})
    assert f"no PhysX GPU library at {machine}" in said
    assert f"/releases/download/{VERSION}/linux-so.zip" in said


def test_all_that_is_missing_is_one_line(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.unlink()
    monkeypatch.setattr(gpu_physics, "library_loads", lambda name: False)
    with pytest.raises(
        MissingDependency, match=r"driver \(.*; no PhysX GPU library.*leave out physics='gpu'"
    ) as caught:
        gpu_physics.gpu_physics_environment({})
    assert "\n" not in str(caught.value)


def test_a_child_that_cannot_load_them_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_physics, "PROBE", "raise ImportError('no such thing')")
    with pytest.raises(MissingDependency, match="cannot be loaded here: ImportError: no such thing"):
        gpu_physics.probe()
    monkeypatch.setattr(gpu_physics, "PROBE", "print('a greeting'); print('1.2-x', True)")
    assert gpu_physics.probe() == ("1.2-x", True)


@pytest.mark.sim
def test_a_machine_without_a_gpu_says_so_before_anything_starts() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("mani_skill")
    if torch.cuda.is_available():
        pytest.skip("has a GPU")
    with pytest.raises(
        MissingDependency, match=r"cannot run physics on a GPU here: .*PyTorch sees no CUDA device"
    ):
        vla_gym.make_vec("ManiSkill/PickCube", 4, physics="gpu")
