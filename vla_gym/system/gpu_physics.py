"""Can ManiSkill's physics run on the GPU here? Told in one line, before SAPIEN's GPU side is loaded.

SAPIEN would download a library without asking, or end the process, when something is missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from vla_gym.errors import MissingDependency
from vla_gym.system.rendering import library_loads
from vla_gym.system.sapien_shaders import check_place
from vla_gym.system.vulkan import DEVICE_VARIABLE, why_not

DRIVER = "libcuda.so"
"""What SAPIEN 3.0.3 loads by this name, NVIDIA's driver."""
LIBRARY = "libPhysXGpu_64.so"
RELEASES = "https://github.com/sapien-sim/physx-precompiled/releases/download"
PROBE_SECONDS = 120.0
PROBE = """
import torch
from sapien import physx
print(physx.version(), torch.cuda.is_available())
"""
"""A child's answer: "105.1-physx-5.3.1.patch0 True"."""


def gpu_physics_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for ManiSkill on GPU physics, which draws on the same GPU.

    Raises `MissingDependency` with everything that is missing and how to get it, and `BadValue` for a cache folder
    that cannot be written.
    """
    check_place(environ)
    missing = gpu_physics_missing(environ)
    if missing:
        raise MissingDependency(
            f"ManiSkill cannot run physics on a GPU here: {'; '.join(missing)}. Or leave out physics='gpu'"
        )
    return {DEVICE_VARIABLE: "cuda"}


def gpu_physics_missing(environ: Mapping[str, str]) -> list[str]:
    """What GPU physics lack on this machine, a phrase each; empty when nothing."""
    missing = []
    driver = library_loads(DRIVER)
    if not driver:
        missing.append(f"no NVIDIA driver ({DRIVER} cannot be loaded; install the driver of your GPU)")
    version, torch_sees_gpu = probe()
    if not torch_sees_gpu:
        missing.append("PyTorch sees no CUDA device (torch.cuda.is_available() is False)")
    library = physx_library(version)
    if not library.is_file():
        missing.append(f"no PhysX GPU library at {library} (unzip {RELEASES}/{version}/linux-so.zip there)")
    if environ.get(DEVICE_VARIABLE, "cuda") != "cuda":
        missing.append(f"{DEVICE_VARIABLE}={environ[DEVICE_VARIABLE]}, but pictures must be drawn on 'cuda'")
    elif driver:
        drivers = tuple(sorted((name, value) for name, value in environ.items() if name.startswith("VK_")))
        cause = why_not("cuda", drivers)
        if cause:
            missing.append(
                f"no Vulkan driver that draws on the GPU ({cause}; install NVIDIA's ICD, nvidia_icd.json)"
            )
    return missing


def physx_library(version: str) -> Path:
    """Where SAPIEN looks for PhysX's GPU half."""
    return Path.home() / ".sapien" / "physx" / version / LIBRARY


def probe() -> tuple[str, bool]:
    """PhysX's version as SAPIEN names it, and whether PyTorch sees a GPU; asked in a child process."""
    done = subprocess.run(  # noqa: S603  our own program
        [sys.executable, "-P", "-c", PROBE],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        timeout=PROBE_SECONDS,
        text=True,
    )
    answer = done.stdout.split()[-2:]
    if done.returncode != 0 or len(answer) != 2:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise MissingDependency(f"SAPIEN or PyTorch cannot be loaded here: {said}")
    return answer[0], answer[1] == "True"
