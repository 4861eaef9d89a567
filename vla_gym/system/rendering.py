"""The GL backend with which MuJoCo renders without a display, and the GPU of each process and worker.

The user's own MUJOCO_GL is respected. Else EGL when there is an NVIDIA GPU, else OSMesa, else Mesa's EGL.

CUDA numbers the GPUs of CUDA_VISIBLE_DEVICES from 0, and PyTorch and SAPIEN with it; ranks of a launcher take them in
turn, as Accelerate does: a rank has number LOCAL_RANK modulo their count. EGL, with which MuJoCo draws, numbers every
GPU that the driver shows: a number in CUDA_VISIBLE_DEVICES is taken to be EGL's too, and MUJOCO_EGL_DEVICE_ID names
another where the orders differ (mujoco issue 3245).
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vla_gym.errors import MissingDependency

APT_LINE = "apt-get install libosmesa6 libegl1 libgl1"
OSMESA_LIBRARIES = ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")
EGL_LIBRARIES = ("libEGL.so.1", "libEGL.so")
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class OwnGpu:
    """One GPU in both numberings."""

    cuda: int
    """Number among those that CUDA sees: PyTorch's and SAPIEN's `cuda:N`."""
    egl: int
    """Number among EGL's devices: MUJOCO_EGL_DEVICE_ID."""


def own_gpu(environ: Mapping[str, str], *, worker: int = 0) -> OwnGpu | None:
    """Return the GPU of worker `worker` of the process with this environment; None where CUDA sees none.

    All workers of a launcher's rank are on that rank's GPU, and ranks beyond the last GPU begin again at the first. A
    process that no launcher started spreads its workers over the GPUs of CUDA_VISIBLE_DEVICES, and stays on the first
    one where that is unset.
    """
    numbers = visible_gpus(environ.get(VISIBLE), num_gpus())
    if not numbers:
        return None
    rank = environ.get("LOCAL_RANK", "")
    turn = int(rank) if rank.isdecimal() else worker if VISIBLE in environ else 0
    return OwnGpu(cuda=turn % len(numbers), egl=numbers[turn % len(numbers)])


def visible_gpus(visible: str | None, count: int) -> tuple[int, ...]:
    """Return the machine's number of each GPU that CUDA sees, in CUDA's order.

    Args:
        visible: CUDA_VISIBLE_DEVICES. It ends at the first entry that is none, as CUDA reads it. A UUID, of a GPU or
            a MIG instance, counts as the GPU of its place in the list.
        count: GPUs of this machine.
    """
    if visible is None:
        return tuple(range(count))
    numbers: list[int] = []
    for name in visible.split(","):
        if count and re.fullmatch(r"\s*(GPU|MIG)-.+", name):
            numbers.append(len(numbers) % count)
        elif name.strip().isdecimal() and int(name) < count:
            numbers.append(int(name))
        else:
            break
    return tuple(numbers)


def num_gpus() -> int:
    """Return how many NVIDIA GPUs have a device node here."""
    return sum(1 for node in Path("/dev").glob("nvidia[0-9]*"))


def rendering_environment(environ: Mapping[str, str], *, worker: int = 0) -> dict[str, str]:
    """Return the variables of a worker that renders with MuJoCo, given the user's environment.

    MUJOCO_EGL_DEVICE_ID is the user's, else that of `own_gpu`. Raises `MissingDependency` when there is no GL library.
    """
    asked = environ.get("MUJOCO_GL", "").strip().lower()
    if asked and asked not in ("egl", "osmesa"):
        return {"MUJOCO_GL": environ["MUJOCO_GL"]}
    backend = asked or _choose(on_nvidia=num_gpus() > 0)
    variables = {"MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
    if backend == "egl" and num_gpus():
        own = own_gpu(environ, worker=worker)
        if device := environ.get("MUJOCO_EGL_DEVICE_ID") or (own and str(own.egl)):
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


@contextmanager
def cuda_hidden() -> Iterator[None]:
    """Leave CUDA_VISIBLE_DEVICES out of the environment, for `import robosuite`.

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
    done = subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, check=False)  # noqa: S603
    return done.returncode == 0
