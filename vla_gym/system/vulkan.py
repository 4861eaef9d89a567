"""Which device SAPIEN (ManiSkill) draws on here, decided before any worker starts.

Without a Vulkan driver, or with one too old, SAPIEN ends the process with a segmentation fault. So one small
picture is taken in a child process first, on the GPU and then in software; what worked is remembered.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from vla_gym.errors import MissingDependency
from vla_gym.system.rendering import nvidia_present
from vla_gym.system.sapien_shaders import check_place

MESA = "24.3"
"""First Mesa whose software driver has VK_KHR_external_semaphore_fd, which SAPIEN 3.0.3 asks for."""
APT_LINE = "apt-get install mesa-vulkan-drivers libvulkan1"
BACKPORTS_LINE = "apt-get install mesa-vulkan-drivers/bookworm-backports libvulkan1"
DEVICE_VARIABLE = "VLA_ZOO_SAPIEN_DEVICE"
"""Set for workers to what `sapien_device` found; a user may set it to `cpu` or `cuda` to choose."""
DEVICES = ("cuda", "cpu")
PROBE_SECONDS = 120.0

PROBE = """
import sys
import sapien
from vla_gym.system.sapien_shaders import use_light_shaders
use_light_shaders()
scene = sapien.Scene([sapien.physx.PhysxCpuSystem(), sapien.render.RenderSystem(sapien.Device(sys.argv[1]))])
camera = scene.add_camera("probe", 8, 8, 1.0, 0.01, 10.0)
scene.update_render()
camera.take_picture()
camera.get_picture("Color")
"""


def sapien_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables a worker that draws with SAPIEN must be started with; the user's own choice is kept.

    Raises `MissingDependency` when no device here can draw.
    """
    return {DEVICE_VARIABLE: sapien_device(environ)}


def sapien_device(environ: Mapping[str, str]) -> str:
    """ "cuda" or "cpu" (software); the first call in a process takes some seconds.

    Raises `MissingDependency` with the line that installs a driver, and `BadValue` for a cache folder that cannot be
    written, which is no driver's fault.
    """
    check_place(environ)
    asked = environ.get(DEVICE_VARIABLE, "")
    devices: tuple[str, ...]
    if asked in DEVICES:
        devices = (asked,)
    elif nvidia_present():
        devices = DEVICES
    else:
        devices = ("cpu",)
    drivers = tuple(sorted((name, value) for name, value in environ.items() if name.startswith("VK_")))
    causes = []
    for device in devices:
        cause = why_not(device, drivers)
        if not cause:
            return device
        causes.append(f"{device}: {cause}")
    raise MissingDependency(
        f"ManiSkill cannot draw here, SAPIEN found no Vulkan driver that works ({'; '.join(causes)}). "
        f"It needs Mesa >= {MESA}. Install with: {APT_LINE}   (Debian 12: {BACKPORTS_LINE})"
    )


@functools.cache
def why_not(device: str, drivers: tuple[tuple[str, str], ...]) -> str:
    """Why SAPIEN cannot draw on `device`, or "" when it can. `drivers`: the variables that choose drivers."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VK_")}
    command = [sys.executable, "-P", "-c", PROBE, device]
    try:
        done = subprocess.run(  # noqa: S603  our own program
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env={
                **environ,
                **dict(drivers),
                "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            },
            timeout=PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"no picture in {PROBE_SECONDS:.0f} s"
    if done.returncode == 0:
        return ""
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines else f"exit code {done.returncode}"
