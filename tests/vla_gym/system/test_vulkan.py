from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from vla_gym.errors import BadValue, MissingDependency
from vla_gym.system import vulkan
from vla_gym.system.gpu_physics import gpu_physics_environment


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


def test_a_gpu_that_cannot_draw_leaves_it_to_software(
    answers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vulkan, "nvidia_present", lambda: True)
    answers["cuda"] = "SIGSEGV"
    assert vulkan.sapien_device({}) == "cpu"
    answers["cpu"] = "no driver"
    with pytest.raises(
        MissingDependency, match=r"cuda: SIGSEGV; cpu: no driver.*apt-get install mesa-vulkan"
    ):
        vulkan.sapien_device({})


def test_the_user_s_choice_stands_even_when_it_fails(answers: dict[str, str]) -> None:
    assert vulkan.sapien_device({"VLA_ZOO_SAPIEN_DEVICE": "cuda"}) == "cuda"
    answers["cuda"] = "no such device"
    with pytest.raises(MissingDependency, match=r"\(cuda: no such device\)"):
        vulkan.sapien_device({"VLA_ZOO_SAPIEN_DEVICE": "cuda"})


def test_a_cache_that_cannot_be_written_is_no_driver_s_fault(answers: dict[str, str], tmp_path: Path) -> None:
    answers |= {"cpu": "FileNotFoundError", "cuda": "FileNotFoundError"}
    (tmp_path / "file").touch()
    for look in (vulkan.sapien_device, gpu_physics_environment):
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
    monkeypatch.setattr(vulkan, "PROBE", program)
    monkeypatch.setattr(vulkan, "PROBE_SECONDS", 1.0 if "sleep" in program else 60.0)
    assert vulkan.why_not.__wrapped__("cpu", ()) == cause


def test_an_answer_is_remembered_until_the_drivers_change(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[Any] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        children.append(options["env"].get("VK_DRIVER_FILES"))
        return subprocess.CompletedProcess(command, 0, b"", b"")

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
