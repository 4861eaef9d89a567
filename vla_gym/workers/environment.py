"""Environment variables of worker processes: thread counts that do not fight over cores, GL, caches."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from collections.abc import Mapping

from vla_gym.errors import MissingDependency
from vla_gym.specs import Benchmark
from vla_gym.system.cache import library_caches
from vla_gym.system.child import python_path
from vla_gym.system.control_groups import cpu_limit
from vla_gym.system.extras import install_command
from vla_gym.system.rendering import rendering_environment
from vla_gym.system.vulkan import gpu_physics_environment, sapien_environment

BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
RENDER_THREADS = ("LP_NUM_THREADS", "NUMBA_NUM_THREADS")
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Large allocations in huge pages: loading a 280 MB compiled scene takes 0.15 s instead of 0.4 s."""


def check_installed(benchmark: Benchmark) -> None:
    """Raise `MissingDependency` with the pip line unless every module the simulator needs is there."""
    missing = [name for name in benchmark.requires if importlib.util.find_spec(name) is None]
    if not missing:
        return
    command = install_command(benchmark.extra) if benchmark.extra else f"pip install {' '.join(missing)}"
    newest = benchmark.newest_python
    first = ""
    if newest is not None and sys.version_info[:2] > newest:
        here, there = (f"{major}.{minor}" for major, minor in (sys.version_info[:2], newest))
        first = f" They have no wheels for Python {here}: make an environment with Python {there}."
    raise MissingDependency(
        f"{benchmark.id} needs {', '.join(missing)}, not installed here.{first} Install with: {command}"
    )


def simulator_environment(benchmark: Benchmark, environ: Mapping[str, str], *, worker: int = 0) -> dict[str, str]:
    """Variables the benchmark's simulator reads when it is imported; none when it draws with NumPy."""
    if "mani_skill" in benchmark.requires:
        return gpu_physics_environment(environ) if benchmark.batched else sapien_environment(environ, worker=worker)
    if "mujoco" not in benchmark.requires:
        return {}
    return {**library_caches(environ), **rendering_environment(environ, worker=worker)}


def worker_environment(
    benchmark: Benchmark, environ: Mapping[str, str], *, worker: int, num_workers: int
) -> dict[str, str]:
    """The whole environment of worker `worker` of `num_workers`.

    One BLAS thread each; software rendering (llvmpipe) and Numba get an even share of the cores.
    """
    share = str(max(1, num_cores() // num_workers))
    return {
        **HUGE_PAGES,
        **dict.fromkeys(RENDER_THREADS, share),
        **environ,
        **dict.fromkeys(BLAS_THREADS, "1"),
        **simulator_environment(benchmark, environ, worker=worker),
        "PYTHONPATH": python_path(),
    }


def num_cores() -> int:
    """CPU cores this process may use: an even share for each process that a launcher started on this machine.

    A container's limit counts, rounded up: it sees all cores of its machine.
    """
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = math.ceil(min(seen, cpu_limit()))
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
