"""Which GPU a process and its workers use. No GPU is needed: drivers' answers are made up."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted_simulator import scripted_benchmark

from vla_gym.system import gpu_uuids, gpus, rendering, vulkan
from vla_gym.workers.environment import worker_environment

ON_MUJOCO = dataclasses.replace(scripted_benchmark(), requires=("mujoco",))
ON_SAPIEN = dataclasses.replace(scripted_benchmark(), requires=("mani_skill",))
VISIBLE = {None: range(8), "0,1,2,3,4,5,6,7": range(8), "2,5,6,7": (2, 5, 6, 7), "6": (6,)}
"""CUDA_VISIBLE_DEVICES on a machine of eight -> CUDA's numbers of its GPUs, in its order."""


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine of eight GPUs whose drivers tell no UUIDs."""
    monkeypatch.setenv("VLA_ZOO_CACHE", str(tmp_path))
    monkeypatch.setattr(gpus, "num_gpus", lambda: 8)
    monkeypatch.setattr(gpus, "probe_uuids", lambda read: ((), ()))
    monkeypatch.setattr(rendering, "nvidia_present", lambda: True)
    monkeypatch.setattr(vulkan, "nvidia_present", lambda: True)
    monkeypatch.setattr(rendering, "library_loads", lambda name: True)
    monkeypatch.setattr(vulkan, "why_not", lambda device, drivers: "")


def environment_of(rank: int, visible: str | None) -> dict[str, str]:
    environ = {"LOCAL_RANK": str(rank)}
    return environ if visible is None else {**environ, "CUDA_VISIBLE_DEVICES": visible}


@pytest.mark.parametrize("num_workers", [1, 2, 4, 8])
@pytest.mark.parametrize("visible", VISIBLE)
def test_each_rank_s_workers_draw_on_its_own_gpu(visible: str | None, num_workers: int, eight_gpus: None) -> None:
    own = VISIBLE[visible]
    for rank, worker in itertools.product(range(8), range(num_workers)):
        environ = environment_of(rank, visible)
        turn = rank % len(own)
        drawn = worker_environment(ON_MUJOCO, environ, worker=worker, num_workers=num_workers)
        assert drawn["MUJOCO_EGL_DEVICE_ID"] == str(own[turn])
        assert drawn.get("CUDA_VISIBLE_DEVICES") == visible
        moved = worker_environment(ON_SAPIEN, environ, worker=worker, num_workers=num_workers)
        assert moved["VLA_ZOO_SAPIEN_DEVICE"] == f"cuda:{turn}"


def test_the_user_s_devices_stand_on_every_rank(eight_gpus: None) -> None:
    environ = {"LOCAL_RANK": "3", "MUJOCO_EGL_DEVICE_ID": "5", "VLA_ZOO_SAPIEN_DEVICE": "cuda:1"}
    drawn = worker_environment(ON_MUJOCO, environ, worker=1, num_workers=2)
    assert drawn["MUJOCO_EGL_DEVICE_ID"] == "5"
    moved = worker_environment(ON_SAPIEN, environ, worker=1, num_workers=2)
    assert moved["VLA_ZOO_SAPIEN_DEVICE"] == "cuda:1"
    assert vulkan.own_device({"LOCAL_RANK": "3"}) == "cuda:3"


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [(None, [0, 0, 0]), ("2,3", [2, 3, 2])],
)
def test_without_a_launcher_workers_spread_over_the_gpus_that_were_named(
    visible: str | None, chosen: list[int], eight_gpus: None
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    numbers = gpus.visible_gpus(environ)
    found = [gpus.own_gpu(environ, numbers, worker=worker) for worker in range(3)]
    assert [own.egl for own in found if own] == chosen


@pytest.mark.parametrize(
    ("visible", "numbers"),
    [
        (None, (0, 1, 2, 3)),
        ("3, 1", (3, 1)),
        ("", ()),
        ("-1", ()),
        ("1,-1,2", (1,)),
        ("1,9,2", (1,)),
        ("NoDevFiles", ()),
        ("GPU-8f2a,GPU-11", (0, 1)),
        ("MIG-a,MIG-b,MIG-c,MIG-d,MIG-e", (0, 1, 2, 3, 0)),
    ],
)
def test_what_cuda_s_own_numbers_say(visible: str | None, numbers: tuple[int, ...]) -> None:
    assert gpus.assumed(visible, 4) == numbers


def test_uuids_find_the_device_whatever_the_order() -> None:
    assert gpus.matched(("aa", "cc"), ("cc", "bb", "aa", "-")) == (2, 0)
    assert gpus.matched(("aa", "aa"), ("bb", "aa")) == (1, 1)  # two MIG instances of one GPU
    assert gpus.matched(("aa", "dd"), ("cc", "bb", "aa")) == ()
    assert gpus.matched(("-",), ("-",)) == ()


def test_uuids_win_over_numbers_and_nothing_is_asked_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def probe(read: tuple[tuple[str, str], ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        asked.append(read)
        return ("aa", "bb"), ("bb", "aa")

    monkeypatch.setattr(gpus, "probe_uuids", probe)
    monkeypatch.setattr(gpus, "num_gpus", lambda: 0)
    assert gpus.visible_gpus({}) == ()
    assert gpus.own_gpu({"LOCAL_RANK": "2"}, ()) is None
    assert asked == []
    monkeypatch.setattr(gpus, "num_gpus", lambda: 2)
    environ = {"CUDA_VISIBLE_DEVICES": "0,1", "HOME": "/h"}
    assert gpus.visible_gpus(environ) == (1, 0)
    assert asked == [(("CUDA_VISIBLE_DEVICES", "0,1"),)]
    assert gpus.own_gpu({"LOCAL_RANK": "3"}, (1, 0)) == gpus.OwnGpu(cuda=1, egl=0)
    assert gpus.own_gpu({"LOCAL_RANK": "none"}, (1, 0)) == gpus.OwnGpu(cuda=0, egl=1)


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ("print('aa bb'); print('bb - aa')", (("aa", "bb"), ("bb", "-", "aa"))),
        ("print(); print('-')", ((), ("-",))),
        ("import os; print(os.environ.get('CUDA_VISIBLE_DEVICES')); print('x')", (("7",), ("x",))),
        ("raise OSError('libcuda.so.1: cannot open shared object file')", ((), ())),
        ("import time; time.sleep(60)", ((), ())),
    ],
)
def test_the_child_s_two_lines(
    program: str, answer: tuple[tuple[str, ...], ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "probe.py"
    file.write_text(program)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(gpu_uuids, "__file__", str(file))
    monkeypatch.setattr(gpus, "PROBE_SECONDS", 1.0 if "sleep" in program else 60.0)
    assert gpus.probe_uuids.__wrapped__((("CUDA_VISIBLE_DEVICES", "7"),)) == answer


def test_robosuite_does_not_see_what_cuda_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1f")
    with rendering.cuda_hidden():
        assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1f"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with rendering.cuda_hidden():
        pass
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


@pytest.mark.sim
def test_libero_comes_up_where_gpus_are_named_by_uuid() -> None:
    pytest.importorskip("robosuite")
    done = subprocess.run(
        [sys.executable, "-c", "import vla_gym.adapters.libero.osc"],
        env={**os.environ, "MUJOCO_EGL_DEVICE_ID": "3", "CUDA_VISIBLE_DEVICES": "GPU-1f,GPU-2e"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
