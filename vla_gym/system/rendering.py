"""GL backend with which MuJoCo renders without a display, chosen before any worker starts.

The user's own MUJOCO_GL is respected. Else EGL when there is an NVIDIA GPU, else OSMesa, else Mesa's EGL.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from vla_gym.errors import MissingDependency
from vla_gym.system.gpus import VISIBLE, num_gpus, own_gpu, visible_gpus

APT_LINE = "apt-get install libosmesa6 libegl1 libgl1"

OSMESA_LIBRARIES = ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")
EGL_LIBRARIES = ("libEGL.so.1", "libEGL.so")


def rendering_environment(environ: Mapping[str, str], *, worker: int = 0) -> dict[str, str]:
    """Return the variables of a worker that renders with MuJoCo, given the user's environment.

    MUJOCO_EGL_DEVICE_ID is the user's, else that of the worker's own GPU (`vla_gym.system.gpus`). Raises
    `MissingDependency` when there is no GL library.
    """
    asked = environ.get("MUJOCO_GL", "").strip().lower()
    if asked and asked not in ("egl", "osmesa"):
        return {"MUJOCO_GL": environ["MUJOCO_GL"]}
    on_nvidia = nvidia_present()
    backend = asked or _choose(on_nvidia=on_nvidia)
    variables = {"MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
    if backend == "egl" and on_nvidia:
        asked_device = environ.get("MUJOCO_EGL_DEVICE_ID")
        own = None if asked_device else own_gpu(environ, visible_gpus(environ), worker=worker)
        if device := asked_device or (own and str(own.egl)):
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


def nvidia_present() -> bool:
    """Whether there is a device node of an NVIDIA GPU."""
    return num_gpus() > 0


@contextmanager
def cuda_hidden() -> Iterator[None]:
    """Context manager without CUDA_VISIBLE_DEVICES, for `import robosuite`.

    It insists that MUJOCO_EGL_DEVICE_ID is part of that text, which counts other things and may hold UUIDs.
    """
    visible = os.environ.pop(VISIBLE, None)
    try:
        yield
    finally:
        if visible is not None:
            os.environ[VISIBLE] = visible


@functools.cache
def library_loads(name: str) -> bool:
    """Whether the dynamic loader can open `name`; tried in a child, so that this process loads no GL driver."""
    probe = [sys.executable, "-I", "-S", "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", name]
    done = subprocess.run(  # noqa: S603  fixed program, our own library names
        probe, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=dict(os.environ)
    )
    return done.returncode == 0
