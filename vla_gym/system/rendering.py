"""The GL backend with which MuJoCo renders without a display, and the GPU of each process and worker.

The user's own MUJOCO_GL is respected. Else EGL when there is an NVIDIA GPU, else OSMesa, else Mesa's EGL.

CUDA numbers the GPUs of CUDA_VISIBLE_DEVICES from 0, and PyTorch and SAPIEN with it; ranks of a launcher take them in
turn, as Accelerate does: a rank has number LOCAL_RANK modulo their count. EGL, with which MuJoCo renders, numbers every
GPU that the driver shows, in an order that may differ (mujoco issue 3245). So a child process asks both for UUIDs;
where they do not tell, a number in CUDA_VISIBLE_DEVICES is taken to be EGL's too.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vla_gym.errors import MissingDependency
from vla_gym.system import gpu_uuids

APT_LINE = "apt-get install libosmesa6 libegl1 libgl1"
OSMESA_LIBRARIES = ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")
EGL_LIBRARIES = ("libEGL.so.1", "libEGL.so")
VISIBLE = "CUDA_VISIBLE_DEVICES"
READ_BY_CUDA = (VISIBLE, "CUDA_DEVICE_ORDER")
PROBE_SECONDS = 60.0


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
    count = num_gpus()
    read = tuple((name, environ[name]) for name in READ_BY_CUDA if name in environ)
    numbers = (count and matched(*probe_uuids(read))) or visible_gpus(environ.get(VISIBLE), count)
    if not numbers:
        return None
    rank = environ.get("LOCAL_RANK", "")
    turn = int(rank) if rank.isdecimal() else worker if VISIBLE in environ else 0
    return OwnGpu(cuda=turn % len(numbers), egl=numbers[turn % len(numbers)])


def matched(cuda: Sequence[str], egl: Sequence[str]) -> tuple[int, ...]:
    """Return EGL's number of each of CUDA's GPUs by their UUIDs; empty unless all are found."""
    if gpu_uuids.UNTOLD in cuda or not set(cuda) <= set(egl):
        return ()
    return tuple(egl.index(uuid) for uuid in cuda)


@functools.cache
def probe_uuids(read_by_cuda: tuple[tuple[str, str], ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the UUIDs of CUDA's GPUs and of EGL's devices, asked in a child, so that this process loads no driver.

    Empty where a library is missing or does not answer in a minute.
    """
    others = {name: value for name, value in os.environ.items() if name not in READ_BY_CUDA}
    try:
        done = subprocess.run(  # noqa: S603  our own program
            [sys.executable, "-I", "-S", gpu_uuids.__file__],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env={**others, **dict(read_by_cuda)},
            timeout=PROBE_SECONDS,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return (), ()
    lines = done.stdout.splitlines()
    if done.returncode or len(lines) != 2:
        return (), ()
    cuda, egl = (tuple(line.split()) for line in lines)
    return cuda, egl


def visible_gpus(visible: str | None, count: int) -> tuple[int, ...]:
    """Return the machine's number of each GPU that CUDA sees, in CUDA's order, where drivers tell no UUIDs.

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
