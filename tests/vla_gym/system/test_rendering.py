"""GL backends, and which GPU a process and its workers use. No GPU is needed: drivers' answers are made up."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted_simulator import scripted_benchmark

from vla_gym.errors import MissingDependency
from vla_gym.system import rendering, vulkan
from vla_gym.workers.process_pool import worker_environment

Choose = Callable[..., dict[str, str]]
ON_MUJOCO = dataclasses.replace(scripted_benchmark(), requires=("mujoco",))
ON_SAPIEN = dataclasses.replace(scripted_benchmark(), requires=("mani_skill",))


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Choose:
    """`choose(environ, *libraries that load, gpus=)`."""

    def call(environ: dict[str, str], *libraries: str, gpus: int = 0) -> dict[str, str]:
        monkeypatch.setattr(rendering, "library_loads", lambda name: name in libraries)
        monkeypatch.setattr(rendering, "num_gpus", lambda: gpus)
        return rendering.rendering_environment(environ)

    return call


@pytest.mark.parametrize(
    ("environ", "libraries", "gpus", "backend"),
    [
        ({"MUJOCO_GL": "osmesa"}, ("libEGL.so.1",), 1, "osmesa"),
        ({}, ("libOSMesa.so.6", "libEGL.so.1"), 0, "osmesa"),
        ({}, ("libEGL.so.1",), 0, "egl"),
        ({}, ("libOSMesa.so.8",), 1, "osmesa"),
        ({}, ("libOSMesa.so.8", "libEGL.so"), 1, "egl"),
    ],
)
def test_backends(choose: Choose, environ: dict[str, str], libraries: list[str], gpus: int, backend: str) -> None:
    chosen = choose(environ, *libraries, gpus=gpus)
    assert (chosen["MUJOCO_GL"], chosen["PYOPENGL_PLATFORM"]) == (backend, backend)


def test_a_window_system_stands(choose: Choose) -> None:
    assert choose({"MUJOCO_GL": "glfw"}) == {"MUJOCO_GL": "glfw"}


def test_nothing_to_render_with_gives_the_apt_line(choose: Choose) -> None:
    with pytest.raises(MissingDependency, match="apt-get install libosmesa6 libegl1 libgl1"):
        choose({})


@pytest.mark.parametrize(
    ("environ", "device"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, "2"),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
        ({"MUJOCO_EGL_DEVICE_ID": "5", "CUDA_VISIBLE_DEVICES": "1"}, "5"),
    ],
)
def test_egl_draws_on_a_gpu_that_cuda_sees(choose: Choose, environ: dict[str, str], device: str | None) -> None:
    assert choose(environ, "libEGL.so.1", gpus=4).get("MUJOCO_EGL_DEVICE_ID") == device


def test_libraries_are_really_tried() -> None:
    assert rendering.library_loads("libc.so.6")
    assert not rendering.library_loads("libdoes-not-exist.so.1")


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLA_ZOO_CACHE", str(tmp_path))
    monkeypatch.setattr(rendering, "num_gpus", lambda: 8)
    monkeypatch.setattr(vulkan, "num_gpus", lambda: 8)
    monkeypatch.setattr(rendering, "library_loads", lambda name: True)
    monkeypatch.setattr(vulkan, "why_not", lambda device, drivers: "")


@pytest.mark.parametrize(("visible", "own"), [(None, range(8)), ("2,5,6,7", (2, 5, 6, 7)), ("6", (6,))])
def test_each_rank_s_workers_draw_on_its_own_gpu(visible: str | None, own: list[int], eight_gpus: None) -> None:
    for rank, worker in itertools.product(range(8), range(2)):
        environ = {"LOCAL_RANK": str(rank)} | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
        turn = rank % len(own)
        drawn = worker_environment(ON_MUJOCO, environ, worker=worker, num_workers=2)
        assert drawn["MUJOCO_EGL_DEVICE_ID"] == str(own[turn])
        moved = worker_environment(ON_SAPIEN, environ, worker=worker, num_workers=2)
        assert moved["VLA_ZOO_SAPIEN_DEVICE"] == f"cuda:{turn}"


def test_the_user_s_devices_stand_on_every_rank(eight_gpus: None) -> None:
    environ = {"LOCAL_RANK": "3", "MUJOCO_EGL_DEVICE_ID": "5", "VLA_ZOO_SAPIEN_DEVICE": "cuda:1"}
    assert worker_environment(ON_MUJOCO, environ, worker=1, num_workers=2)["MUJOCO_EGL_DEVICE_ID"] == "5"
    assert worker_environment(ON_SAPIEN, environ, worker=1, num_workers=2)["VLA_ZOO_SAPIEN_DEVICE"] == "cuda:1"
    assert vulkan.own_device({"LOCAL_RANK": "3"}) == "cuda:3"


@pytest.mark.parametrize(("visible", "chosen"), [(None, [0, 0, 0]), ("2,3", [2, 3, 2])])
def test_without_a_launcher_workers_spread_over_the_gpus_that_were_named(
    visible: str | None, chosen: list[int], eight_gpus: None
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = [rendering.own_gpu(environ, worker=worker) for worker in range(3)]
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
        ("GPU-8f2a,GPU-11", (0, 1)),
        ("MIG-a,MIG-b,MIG-c,MIG-d,MIG-e", (0, 1, 2, 3, 0)),
    ],
)
def test_cuda_s_own_numbers(visible: str | None, numbers: tuple[int, ...]) -> None:
    assert rendering.visible_gpus(visible, 4) == numbers


def test_uuids_find_the_device_whatever_the_order() -> None:
    assert rendering.matched(("aa", "cc"), ("cc", "bb", "aa", "-")) == (2, 0)
    assert rendering.matched(("aa", "aa"), ("bb", "aa")) == (1, 1)  # two MIG instances of one GPU
    assert rendering.matched(("aa", "dd"), ("cc", "bb", "aa")) == ()
    assert rendering.matched(("-",), ("-",)) == ()


def test_uuids_win_over_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "probe_uuids", lambda read: (("aa", "bb"), ("bb", "aa")))
    monkeypatch.setattr(rendering, "num_gpus", lambda: 0)
    assert rendering.own_gpu({"LOCAL_RANK": "1"}) is None
    monkeypatch.setattr(rendering, "num_gpus", lambda: 2)
    environ = {"CUDA_VISIBLE_DEVICES": "0,1", "LOCAL_RANK": "3"}
    assert rendering.own_gpu(environ) == rendering.OwnGpu(cuda=1, egl=0)


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ("print('aa bb'); print('bb - aa')", (("aa", "bb"), ("bb", "-", "aa"))),
        ("import os; print(os.environ.get('CUDA_VISIBLE_DEVICES')); print('x')", (("7",), ("x",))),
        ("raise OSError('libcuda.so.1: cannot open shared object file')", ((), ())),
    ],
)
def test_the_childs_two_lines(
    program: str, answer: tuple[tuple[str, ...], ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "probe.py").write_text(program)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(rendering.gpu_uuids, "__file__", str(tmp_path / "probe.py"))
    assert rendering.probe_uuids.__wrapped__((("CUDA_VISIBLE_DEVICES", "7"),)) == answer


def test_robosuite_does_not_see_what_cuda_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1f")
    with rendering.cuda_hidden():
        assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1f"
