"""GL backend with which MuJoCo renders without a display, chosen before any worker starts.

The user's own MUJOCO_GL is respected. Else EGL when there is an NVIDIA GPU, else OSMesa, else Mesa's EGL.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from vla_gym.errors import MissingDependency

APT_LINE = "apt-get install libosmesa6 libegl1 libgl1"

OSMESA_LIBRARIES = ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")
EGL_LIBRARIES = ("libEGL.so.1", "libEGL.so")


def rendering_environment(environ: Mapping[str, str], *, worker: int = 0) -> dict[str, str]:
    """Return the variables of a worker that renders with MuJoCo, given the user's environment.

    The number of the worker spreads workers over the GPUs of CUDA_VISIBLE_DEVICES. Raises `MissingDependency` when
    there is no GL library.
    """
    asked = environ.get("MUJOCO_GL", "").strip().lower()
    if asked and asked not in ("egl", "osmesa"):
        return {"MUJOCO_GL": environ["MUJOCO_GL"]}
    on_nvidia = nvidia_present()
    backend = asked or _choose(on_nvidia=on_nvidia)
    variables = {"MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
    if backend == "egl" and on_nvidia:
        device = environ.get("MUJOCO_EGL_DEVICE_ID") or _device(environ.get("CUDA_VISIBLE_DEVICES"), worker)
        if device is not None:
            variables["MUJOCO_EGL_DEVICE_ID"] = device
    return variables


def _choose(*, on_nvidia: bool) -> str:
    choices = (("osmesa", OSMESA_LIBRARIES), ("egl", EGL_LIBRARIES))
    for backend, libraries in choices[::-1] if on_nvidia else choices:
        if any(map(library_loads, libraries)):
            return backend
    raise MissingDependency(
        f"no library to render with: tried {', '.join((*OSMESA_LIBRARIES, *EGL_LIBRARIES))}. "
        f"Install one with: {APT_LINE}"
    )


def _device(visible: str | None, worker: int) -> str | None:
    """EGL numbers all GPUs, whatever CUDA may see; robosuite insists that the two agree."""
    if visible is None:
        return "0"
    listed = [name.strip() for name in visible.split(",") if name.strip()]
    if not listed or not all(name.isdecimal() for name in listed):
        return None  # none visible, or named by UUID, which EGL cannot look up
    return listed[worker % len(listed)]


def nvidia_present() -> bool:
    """Whether there is a device node of an NVIDIA GPU."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


@functools.cache
def library_loads(name: str) -> bool:
    """Whether the dynamic loader can open `name`; tried in a child, so that this process loads no GL driver."""
    probe = [sys.executable, "-I", "-S", "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", name]
    done = subprocess.run(  # noqa: S603  fixed program, our own library names
        probe, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=dict(os.environ)
    )
    return done.returncode == 0
