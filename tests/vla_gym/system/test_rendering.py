from __future__ import annotations

from collections.abc import Callable

import pytest

from vla_gym.errors import MissingDependency
from vla_gym.system.rendering import library_loads, rendering_environment


def having(*names: str) -> Callable[[str], bool]:
    return lambda name: name in names


def choose(
    environ: dict[str, str] | None = None, *libraries: str, nvidia: bool = False, worker: int = 0
) -> dict[str, str]:
    return rendering_environment(
        environ or {}, worker=worker, loadable=having(*libraries), has_nvidia=lambda: nvidia
    )


def test_the_user_s_choice_stands() -> None:
    assert choose({"MUJOCO_GL": "glfw"}) == {"MUJOCO_GL": "glfw"}
    assert choose({"MUJOCO_GL": "osmesa"}, "libEGL.so.1", nvidia=True) == {
        "MUJOCO_GL": "osmesa",
        "PYOPENGL_PLATFORM": "osmesa",
    }


@pytest.mark.parametrize("library", ["libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so"])
def test_without_a_gpu_osmesa_comes_first(library: str) -> None:
    assert choose({}, library, "libEGL.so.1") == {"MUJOCO_GL": "osmesa", "PYOPENGL_PLATFORM": "osmesa"}


def test_then_mesa_s_egl() -> None:
    assert choose({}, "libEGL.so.1") == {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl"}


def test_nothing_to_render_with_gives_the_apt_line() -> None:
    with pytest.raises(MissingDependency, match="apt-get install libosmesa6 libegl1 libgl1"):
        choose()


def test_a_gpu_without_egl_falls_to_osmesa() -> None:
    assert choose({}, "libOSMesa.so.8", nvidia=True)["MUJOCO_GL"] == "osmesa"


@pytest.mark.parametrize(
    ("visible", "worker", "device"),
    [(None, 3, "0"), ("2,3", 0, "2"), ("2,3", 1, "3"), ("2,3", 2, "2"), ("GPU-1f", 0, None), ("", 0, None)],
)
def test_egl_draws_on_a_gpu_that_cuda_sees(visible: str | None, worker: int, device: str | None) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    chosen = choose(environ, "libEGL.so.1", nvidia=True, worker=worker)
    assert chosen["MUJOCO_GL"] == "egl"
    assert chosen.get("MUJOCO_EGL_DEVICE_ID") == device


def test_the_user_s_device_stands() -> None:
    environ = {"MUJOCO_EGL_DEVICE_ID": "5", "CUDA_VISIBLE_DEVICES": "1"}
    assert choose(environ, "libEGL.so", nvidia=True)["MUJOCO_EGL_DEVICE_ID"] == "5"


def test_libraries_are_really_tried() -> None:
    assert library_loads("libc.so.6")
    assert not library_loads("libdoes-not-exist.so.1")
