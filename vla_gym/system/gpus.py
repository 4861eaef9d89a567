"""The GPU of a process: the one on which its policy computes, its physics run and its workers draw.

Two numberings meet here. CUDA numbers the GPUs of CUDA_VISIBLE_DEVICES from 0, and PyTorch and SAPIEN with it; ranks
of a launcher take them in turn, as Accelerate does: a rank has number LOCAL_RANK modulo their count. EGL, with which
MuJoCo draws, numbers every GPU that the driver shows and Mesa's devices besides, whatever CUDA may see; often in the
same order, but not always (mujoco issue 3245). So a child process asks both for UUIDs. Where they do not tell, a number
in CUDA_VISIBLE_DEVICES is taken to be EGL's too.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vla_gym.system import gpu_uuids

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


def own_gpu(environ: Mapping[str, str], egl_numbers: Sequence[int], *, worker: int = 0) -> OwnGpu | None:
    """Return the GPU of worker `worker` of the process with this environment; None where CUDA sees none.

    All workers of a launcher's rank are on that rank's GPU, and ranks beyond the last GPU begin again at the first. A
    process that no launcher started spreads its workers over the GPUs of CUDA_VISIBLE_DEVICES, and stays on the first
    one where that is unset.

    Args:
        environ: LOCAL_RANK and CUDA_VISIBLE_DEVICES are read.
        egl_numbers: EGL's number of each GPU that CUDA sees, in CUDA's order; see `visible_gpus`.
        worker: the worker's number; 0 for the process itself.
    """
    if not egl_numbers:
        return None
    rank = environ.get("LOCAL_RANK", "")
    turn = int(rank) if rank.isdecimal() else worker if VISIBLE in environ else 0
    cuda = turn % len(egl_numbers)
    return OwnGpu(cuda=cuda, egl=egl_numbers[cuda])


def visible_gpus(environ: Mapping[str, str]) -> tuple[int, ...]:
    """EGL's number of each GPU that CUDA sees, in CUDA's order; empty where it sees none."""
    count = num_gpus()
    if not count:
        return ()
    read = tuple((name, environ[name]) for name in READ_BY_CUDA if name in environ)
    return matched(*probe_uuids(read)) or assumed(environ.get(VISIBLE), count)


def matched(cuda: Sequence[str], egl: Sequence[str]) -> tuple[int, ...]:
    """EGL's number of each of CUDA's GPUs by their UUIDs; empty unless all are found."""
    if gpu_uuids.UNTOLD in cuda or not set(cuda) <= set(egl):
        return ()
    return tuple(egl.index(uuid) for uuid in cuda)


def assumed(visible: str | None, count: int) -> tuple[int, ...]:
    """EGL's numbers where drivers tell no UUIDs: CUDA's own, which on most machines they are.

    Args:
        visible: CUDA_VISIBLE_DEVICES. It ends at the first entry that is none, as CUDA reads it. A UUID, of a GPU or
            a MIG instance, counts as the GPU of its place in the list.
        count: GPUs of this machine.
    """
    if visible is None:
        return tuple(range(count))
    numbers: list[int] = []
    for name in visible.split(","):
        if re.fullmatch(r"\s*(GPU|MIG)-.+", name):
            numbers.append(len(numbers) % count)
        elif name.strip().isdecimal() and int(name) < count:
            numbers.append(int(name))
        else:
            break
    return tuple(numbers)


def num_gpus() -> int:
    """How many NVIDIA GPUs have a device node here."""
    return sum(1 for node in Path("/dev").glob("nvidia[0-9]*"))


@functools.cache
def probe_uuids(read_by_cuda: tuple[tuple[str, str], ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """UUIDs of CUDA's GPUs and of EGL's devices, asked in a child, so that this process loads no driver.

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
