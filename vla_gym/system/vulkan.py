"""SAPIEN (ManiSkill) on this machine: the device it renders on, physics on the GPU, and its shaders.

Without a Vulkan driver, or with one too old, SAPIEN ends the process with a segmentation fault; without a part of GPU
physics it does the same, or downloads a library unasked. So child processes try first, before any worker starts: one
small image, on the GPU and then in software, and the versions of what physics need. Answers are remembered.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from vla_gym.errors import MissingDependency
from vla_gym.system.child import python_path
from vla_gym.system.paths import cache_dir, check_writable
from vla_gym.system.rendering import library_loads, num_gpus, own_gpu

MESA = "24.3"
"""First Mesa whose software driver has VK_KHR_external_semaphore_fd, which SAPIEN 3.0.3 asks for."""
APT_LINE = "apt-get install mesa-vulkan-drivers libvulkan1"
BACKPORTS_LINE = "apt-get install mesa-vulkan-drivers/bookworm-backports libvulkan1"
DEVICE_VARIABLE = "VLA_ZOO_SAPIEN_DEVICE"
"""Set for workers to the result of `sapien_device`; a user may choose: `cpu`, `cuda` (the rank's own), `cuda:N`."""
PROBE_SECONDS = 120.0

IMAGE_PROBE = """
import sys
import sapien
from vla_gym.system.vulkan import use_light_shaders
use_light_shaders()
scene = sapien.Scene([sapien.physx.PhysxCpuSystem(), sapien.render.RenderSystem(sapien.Device(sys.argv[1]))])
camera = scene.add_camera("probe", 8, 8, 1.0, 0.01, 10.0)
scene.update_render()
camera.take_picture()
camera.get_picture("Color")
"""

CUDA_DRIVER = "libcuda.so"
"""NVIDIA's driver, by the name that SAPIEN 3.0.3 loads."""
PHYSX_LIBRARY = "libPhysXGpu_64.so"
PHYSX_RELEASES = "https://github.com/sapien-sim/physx-precompiled/releases/download"
PHYSICS_PROBE = """
import torch
from sapien import physx
print(physx.version(), torch.cuda.is_available())
"""
"""Prints "105.1-physx-5.3.1.patch0 True", for example."""

STOCK = "minimal"
"""SAPIEN's own folder of these shaders."""
TABLE_DECLARATION = "uniform sampler2D samplerBRDFLUT;"
TABLE_READING = "texture(samplerBRDFLUT, vec2(roughness, dotNV)).xy"
IMAGE_FORMATS = {
    "Color": "r8g8b8a8unorm",
    "ColorRaw": "r8g8b8a8unorm",
    "PositionSegmentation": "r16g16b16a16sint",
}
"""ManiSkill 3.0.1's settings for this shader pack (`mani_skill/render/shaders.py`)."""


def sapien_environment(environ: Mapping[str, str], *, worker: int = 0) -> dict[str, str]:
    """Return the variables of a worker that renders with SAPIEN; see `sapien_device`."""
    return {DEVICE_VARIABLE: sapien_device(environ, worker=worker)}


def sapien_device(environ: Mapping[str, str], *, worker: int = 0) -> str:
    """Return "cuda:N", the worker's `own_gpu`, or "cpu" (software), the user's choice first.

    The first call in a process takes some seconds. Raises `MissingDependency` with the line that installs a driver,
    and `BadValue` for a cache folder that cannot be written.
    """
    _check_shader_folder(environ)
    asked = environ.get(DEVICE_VARIABLE, "")
    if re.fullmatch(r"cpu|cuda(:\d+)?", asked):
        devices = [own_device(environ, worker=worker) if asked == "cuda" else asked]
    else:
        devices = [own_device(environ, worker=worker), "cpu"] if num_gpus() else ["cpu"]
    causes = []
    for device in devices:
        cause = why_not(device, _vulkan_variables(environ))
        if not cause:
            return device
        causes.append(f"{device}: {cause}")
    raise MissingDependency(
        f"ManiSkill cannot draw here, SAPIEN found no Vulkan driver that works ({'; '.join(causes)}). "
        f"It needs Mesa >= {MESA}. Install with: {APT_LINE}   (Debian 12: {BACKPORTS_LINE})"
    )


def own_device(environ: Mapping[str, str], *, worker: int = 0) -> str:
    """Return PyTorch's and SAPIEN's name of the worker's own GPU: "cuda:N", or "cuda" where CUDA sees none."""
    own = own_gpu(environ, worker=worker)
    return f"cuda:{own.cuda}" if own else "cuda"


@functools.cache
def why_not(device: str, drivers: tuple[tuple[str, str], ...]) -> str:
    """Return why SAPIEN cannot render on `device`, or ""; `drivers` are the variables that choose drivers."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VK_")}
    try:
        done = _run_python(IMAGE_PROBE, device, environ={**environ, **dict(drivers)})
    except subprocess.TimeoutExpired:
        return f"no image in {PROBE_SECONDS:.0f} s"
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    return _last_line(done) if done.returncode else ""


def gpu_physics_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for ManiSkill on GPU physics: the process's own GPU, for physics and images alike.

    Raises `MissingDependency` with everything that is missing and how to get it, and `BadValue` for a cache folder
    that cannot be written.
    """
    _check_shader_folder(environ)
    asked = environ.get(DEVICE_VARIABLE, "cuda")
    device = own_device(environ) if asked == "cuda" else asked
    if missing := gpu_physics_missing(device, _vulkan_variables(environ)):
        raise MissingDependency(
            f"ManiSkill cannot run physics on a GPU here: {'; '.join(missing)}. Or leave out physics='gpu'"
        )
    return {DEVICE_VARIABLE: device}


def gpu_physics_missing(device: str, drivers: tuple[tuple[str, str], ...]) -> list[str]:
    """Return a phrase for each thing that GPU physics lack on this machine."""
    driver, on_gpu = library_loads(CUDA_DRIVER), device.startswith("cuda")
    version, torch_sees_gpu = probe_physics()
    library = Path.home() / ".sapien" / "physx" / version / PHYSX_LIBRARY  # where SAPIEN looks
    cause = why_not(device, drivers) if on_gpu and driver else ""
    phrases = {
        f"no NVIDIA driver ({CUDA_DRIVER} cannot be loaded; install the driver of your GPU)": not driver,
        "PyTorch sees no CUDA device (torch.cuda.is_available() is False)": not torch_sees_gpu,
        f"no PhysX GPU library at {library} (unzip {PHYSX_RELEASES}/{version}/linux-so.zip there)": (
            not library.is_file()
        ),
        f"{DEVICE_VARIABLE}={device}, but images must be drawn on 'cuda'": not on_gpu,
        f"no Vulkan driver that draws on the GPU ({cause}; install NVIDIA's ICD, nvidia_icd.json)": bool(cause),
    }
    return [phrase for phrase, applies in phrases.items() if applies]


def probe_physics() -> tuple[str, bool]:
    """Return PhysX's version as SAPIEN names it, and whether PyTorch sees a GPU; found out in a child process."""
    done = _run_python(PHYSICS_PROBE, environ=os.environ)
    answer = done.stdout.split()[-2:]
    if done.returncode != 0 or len(answer) != 2:
        raise MissingDependency(f"SAPIEN or PyTorch cannot be loaded here: {_last_line(done)}")
    return answer[0], answer[1] == "True"


def use_light_shaders() -> None:
    """Make cameras built from now on in this process draw with `light_shaders`, in ManiSkill's formats."""
    import sapien

    sapien.render.set_camera_shader_dir(light_shaders())
    for name, layout in IMAGE_FORMATS.items():
        sapien.render.set_picture_format(name, layout)


def light_shaders(root: Path | None = None) -> str:
    """Return a folder for `sapien.render.set_camera_shader_dir`; written once per machine and SAPIEN version.

    It holds SAPIEN's `minimal` shaders without a look-up table (a BRDF integral for environment maps), which is
    computed before a process's first image: unnoticed on a GPU, but 7 s in software, in every worker. Scenes without an
    environment map multiply it by black, so images are equal bit for bit. Shaders of another SAPIEN, in which the table
    is not found, are used as they are.
    """
    import sapien

    stock = Path(sapien.__file__).parent / "vulkan_shader"
    folder = (cache_dir() if root is None else root) / "shaders" / f"sapien-{metadata.version('sapien')}"
    if not folder.is_dir() and not _write_shaders(stock, folder):
        return STOCK
    return str(folder / STOCK)


def without_table(source: str) -> str:
    """Return a shader's text without the declaration and the reading of the table."""
    lines = [line for line in source.splitlines() if TABLE_DECLARATION not in line]
    return "\n".join(lines).replace(TABLE_READING, "vec2(0.0)") + "\n"


def _check_shader_folder(environ: Mapping[str, str]) -> None:
    folder = cache_dir(environ) / "shaders"
    if not any(folder.glob("sapien-*")):
        check_writable(folder)


def _write_shaders(stock: Path, folder: Path) -> bool:
    """Copy the shaders to `folder` in one move, so that another worker never sees half of them."""
    with tempfile.TemporaryDirectory(dir=check_writable(folder.parent)) as scratch:
        made = Path(scratch) / "made"
        for name in (STOCK, "common"):
            shutil.copytree(stock / name, made / name)
        for file in (made / STOCK).glob("*.frag"):
            text = without_table(file.read_text(encoding="utf-8"))
            if "samplerBRDFLUT" in text:
                return False
            file.write_text(text, encoding="utf-8")
        try:
            os.rename(made, folder)
        except OSError:
            return folder.is_dir()  # another worker was first
    return True


def _vulkan_variables(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in environ.items() if name.startswith("VK_")))


def _run_python(program: str, *arguments: str, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603  our own programs
        [sys.executable, "-P", "-c", program, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env={**environ, "PYTHONPATH": python_path()},
        timeout=PROBE_SECONDS,
        text=True,
        errors="replace",
    )


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1].strip()
