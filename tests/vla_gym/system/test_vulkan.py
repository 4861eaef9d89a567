from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import vla_gym
from vla_gym.errors import BadValue, MissingDependency
from vla_gym.system import vulkan


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Device -> why it cannot draw; those left out can."""
    monkeypatch.setenv("HOME", str(tmp_path))
    causes: dict[str, str] = {}
    monkeypatch.setattr(vulkan, "why_not", lambda device, drivers: causes.get(device, ""))
    return causes


@pytest.mark.parametrize(("gpu", "device"), [(True, "cuda"), (False, "cpu")])
def test_the_gpu_comes_first_where_there_is_one(
    gpu: bool, device: str, answers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vulkan, "nvidia_present", lambda: gpu)
    assert vulkan.sapien_environment({}) == {"VLA_ZOO_SAPIEN_DEVICE": device}


def test_a_gpu_that_cannot_draw_leaves_it_to_software(answers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan, "nvidia_present", lambda: True)
    answers["cuda"] = "SIGSEGV"
    assert vulkan.sapien_device({}) == "cpu"
    answers["cpu"] = "no driver"
    with pytest.raises(MissingDependency, match=r"cuda: SIGSEGV; cpu: no driver.*apt-get install mesa-vulkan"):
        vulkan.sapien_device({})


def test_the_user_s_choice_stands_even_when_it_fails(answers: dict[str, str]) -> None:
    assert vulkan.sapien_device({"VLA_ZOO_SAPIEN_DEVICE": "cuda"}) == "cuda"
    answers["cuda"] = "no such device"
    with pytest.raises(MissingDependency, match=r"\(cuda: no such device\)"):
        vulkan.sapien_device({"VLA_ZOO_SAPIEN_DEVICE": "cuda"})


def test_a_cache_that_cannot_be_written_is_no_driver_s_fault(answers: dict[str, str], tmp_path: Path) -> None:
    answers |= {"cpu": "FileNotFoundError", "cuda": "FileNotFoundError"}
    (tmp_path / "file").touch()
    for look in (vulkan.sapien_device, vulkan.gpu_physics_environment):
        with pytest.raises(BadValue, match=r"^cannot write to .*shaders .*: set VLA_ZOO_CACHE"):
            look({"VLA_ZOO_CACHE": str(tmp_path / "file")})
    (tmp_path / "shaders" / "sapien-3.0.3").mkdir(parents=True)  # nothing is left to write
    (tmp_path / "shaders").chmod(0o500)
    with pytest.raises(MissingDependency):
        vulkan.sapien_device({"VLA_ZOO_CACHE": str(tmp_path)})


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        ("", ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import time; time.sleep(60)", "no picture in 1 s"),
    ],
)
def test_a_crash_stays_in_the_child(program: str, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan, "PICTURE_PROBE", program)
    monkeypatch.setattr(vulkan, "PROBE_SECONDS", 1.0 if "sleep" in program else 60.0)
    assert vulkan.why_not.__wrapped__("cpu", ()) == cause


def test_an_answer_is_remembered_until_the_drivers_change(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[Any] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        children.append(options["env"].get("VK_DRIVER_FILES"))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    vulkan.why_not.cache_clear()
    for drivers in ("/a.json", "/a.json", "/b.json"):
        assert vulkan.sapien_device({"VLA_ZOO_SAPIEN_DEVICE": "cpu", "VK_DRIVER_FILES": drivers}) == "cpu"
    assert children == ["/a.json", "/b.json"]
    vulkan.why_not.cache_clear()


@pytest.mark.sim
def test_without_a_driver_there_is_one_clear_line() -> None:
    pytest.importorskip("sapien")
    nowhere = dict.fromkeys(("VK_DRIVER_FILES", "VK_ICD_FILENAMES"), "/nowhere.json")
    with pytest.raises(MissingDependency, match=r"cannot draw here.*Mesa >= 24\.3.*apt-get install"):
        vulkan.sapien_device({**nowhere, "VLA_ZOO_SAPIEN_DEVICE": "cpu"})


VERSION = "105.1-physx-5.3.1.patch0"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine that has everything; returns the file of its PhysX library."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(vulkan, "library_loads", lambda name: name == "libcuda.so")
    monkeypatch.setattr(vulkan, "probe_physics", lambda: (VERSION, True))
    monkeypatch.setattr(vulkan, "why_not", lambda device, drivers: "")
    library = tmp_path / ".sapien" / "physx" / VERSION / "libPhysXGpu_64.so"
    library.parent.mkdir(parents=True)
    library.touch()
    return library


def test_where_nothing_is_missing_pictures_are_drawn_on_the_gpu(machine: Path) -> None:
    assert vulkan.gpu_physics_environment({}) == {"VLA_ZOO_SAPIEN_DEVICE": "cuda"}


def test_a_rank_s_physics_and_pictures_are_on_its_own_gpu(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan, "visible_gpus", lambda environ: (0, 1, 2, 3))
    tried: list[str] = []
    monkeypatch.setattr(vulkan, "why_not", lambda device, drivers: tried.append(device) or "")
    assert vulkan.gpu_physics_environment({"LOCAL_RANK": "6"}) == {"VLA_ZOO_SAPIEN_DEVICE": "cuda:2"}
    asked = {"LOCAL_RANK": "6", "VLA_ZOO_SAPIEN_DEVICE": "cuda"}
    assert vulkan.gpu_physics_environment(asked) == {"VLA_ZOO_SAPIEN_DEVICE": "cuda:2"}
    asked["VLA_ZOO_SAPIEN_DEVICE"] = "cuda:1"
    assert vulkan.gpu_physics_environment(asked) == {"VLA_ZOO_SAPIEN_DEVICE": "cuda:1"}
    assert tried == ["cuda:2", "cuda:2", "cuda:1"]


def test_each_thing_that_is_missing_is_named_alone(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (phrase,) = vulkan.gpu_physics_missing({"VLA_ZOO_SAPIEN_DEVICE": "cpu"})
    assert phrase.startswith("VLA_ZOO_SAPIEN_DEVICE=cpu")
    with monkeypatch.context() as patch:
        patch.setattr(vulkan, "why_not", lambda device, drivers: f"{device} {drivers}: SIGSEGV")
        (phrase,) = vulkan.gpu_physics_missing({"VK_DRIVER_FILES": "/a.json", "HOME": "/h"})
    assert "no Vulkan driver that draws on the GPU (cuda (('VK_DRIVER_FILES', '/a.json'),): SIGSEGV" in phrase
    with monkeypatch.context() as patch:
        patch.setattr(vulkan, "probe_physics", lambda: (VERSION, False))
        (phrase,) = vulkan.gpu_physics_missing({})
    assert phrase.startswith("PyTorch sees no CUDA device")
    with monkeypatch.context() as patch:
        patch.setattr(vulkan, "library_loads", lambda name: False)
        (phrase,) = vulkan.gpu_physics_missing({})
    assert phrase.startswith("no NVIDIA driver (libcuda.so")
    machine.unlink()
    (phrase,) = vulkan.gpu_physics_missing({})
    assert f"no PhysX GPU library at {machine}" in phrase
    assert f"/releases/download/{VERSION}/linux-so.zip" in phrase


def test_all_that_is_missing_is_one_line(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.unlink()
    monkeypatch.setattr(vulkan, "library_loads", lambda name: False)
    with pytest.raises(
        MissingDependency, match=r"driver \(.*; no PhysX GPU library.*leave out physics='gpu'"
    ) as caught:
        vulkan.gpu_physics_environment({})
    assert "\n" not in str(caught.value)


def test_a_child_that_cannot_load_them_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan, "PHYSICS_PROBE", "raise ImportError('no such thing')")
    with pytest.raises(MissingDependency, match="cannot be loaded here: ImportError: no such thing"):
        vulkan.probe_physics()
    monkeypatch.setattr(vulkan, "PHYSICS_PROBE", "print('a greeting'); print('1.2-x', True)")
    assert vulkan.probe_physics() == ("1.2-x", True)


@pytest.mark.sim
def test_a_machine_without_a_gpu_says_so_before_anything_starts() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("mani_skill")
    if torch.cuda.is_available():
        pytest.skip("has a GPU")
    with pytest.raises(MissingDependency, match=r"cannot run physics on a GPU here: .*PyTorch sees no CUDA device"):
        vla_gym.make_vec("ManiSkill/PickCube", 4, physics="gpu")
