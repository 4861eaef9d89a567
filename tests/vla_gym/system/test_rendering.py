from __future__ import annotations

from collections.abc import Callable

import pytest

from vla_gym.errors import MissingDependency
from vla_gym.system import gpus, rendering

Choose = Callable[..., dict[str, str]]


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Choose:
    """`choose(environ, *libraries that load, nvidia=)`."""

    def call(environ: dict[str, str], *libraries: str, nvidia: bool = False) -> dict[str, str]:
        monkeypatch.setattr(rendering, "library_loads", lambda name: name in libraries)
        monkeypatch.setattr(rendering, "nvidia_present", lambda: nvidia)
        return rendering.rendering_environment(environ)

    return call


def test_the_user_s_choice_stands(choose: Choose) -> None:
    assert choose({"MUJOCO_GL": "glfw"}) == {"MUJOCO_GL": "glfw"}
    assert choose({"MUJOCO_GL": "osmesa"}, "libEGL.so.1", nvidia=True) == {
        "MUJOCO_GL": "osmesa",
        "PYOPENGL_PLATFORM": "osmesa",
    }


@pytest.mark.parametrize("library", ["libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so"])
def test_without_a_gpu_osmesa_comes_first(choose: Choose, library: str) -> None:
    assert choose({}, library, "libEGL.so.1") == {"MUJOCO_GL": "osmesa", "PYOPENGL_PLATFORM": "osmesa"}


def test_then_mesa_s_egl(choose: Choose) -> None:
    assert choose({}, "libEGL.so.1") == {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl"}


def test_nothing_to_render_with_gives_the_apt_line(choose: Choose) -> None:
    with pytest.raises(MissingDependency, match="apt-get install libosmesa6 libegl1 libgl1"):
        choose({})


def test_a_gpu_without_egl_falls_to_osmesa(choose: Choose) -> None:
    assert choose({}, "libOSMesa.so.8", nvidia=True)["MUJOCO_GL"] == "osmesa"


@pytest.mark.parametrize(("visible", "device"), [("2,3", "2"), ("", None)])
def test_egl_draws_on_a_gpu_that_cuda_sees(
    choose: Choose, visible: str, device: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "num_gpus", lambda: 4)
    monkeypatch.setattr(gpus, "probe_uuids", lambda read: ((), ()))
    chosen = choose({"CUDA_VISIBLE_DEVICES": visible}, "libEGL.so.1", nvidia=True)
    assert chosen["MUJOCO_GL"] == "egl"
    assert chosen.get("MUJOCO_EGL_DEVICE_ID") == device


def test_the_user_s_device_stands(choose: Choose) -> None:
    environ = {"MUJOCO_EGL_DEVICE_ID": "5", "CUDA_VISIBLE_DEVICES": "1"}
    assert choose(environ, "libEGL.so", nvidia=True)["MUJOCO_EGL_DEVICE_ID"] == "5"


def test_libraries_are_really_tried() -> None:
    assert rendering.library_loads("libc.so.6")
    assert not rendering.library_loads("libdoes-not-exist.so.1")
