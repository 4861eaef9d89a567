"""Requirements of a machine: one check each, a function that returns a description or raises with the remedy."""

from __future__ import annotations

import importlib.util
import os
import platform
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from vla_gym.errors import MissingDependency, VLAZooError
from vla_gym.system.extras import install_command
from vla_gym.system.paths import cache_dir, check_writable
from vla_gym.system.rendering import rendering_environment
from vla_gym.system.vulkan import sapien_device

HUB_SECONDS = 5.0
RENDERED = ("LIBERO-Spatial/0", "MetaWorld/reach", "ManiSkill/PushCube", "ManiSkill-Plate25")
"""One environment of each benchmark; its first image needs all of the benchmark's parts."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One requirement."""

    name: str
    run: Callable[[], str]
    """Returns a description; raises `VLAZooError` with the remedy when it is missing."""
    optional: bool = False
    """Whether everything else works without it."""

    def line(self) -> tuple[str, bool]:
        """Run the check; returns one line, and whether nothing that is needed is missing."""
        try:
            word, detail, sound = "ok", self.run(), True
        except VLAZooError as error:
            word, sound = ("without", True) if self.optional else ("missing", False)
            detail = " ".join(str(error).split())
        return f"{word:<8} {self.name:<20} {detail}", sound


def all_checks(env_ids: Sequence[str]) -> tuple[Check, ...]:
    """Return all checks in order; one image of each of `env_ids`."""
    gl = any(env_id.startswith(("LIBERO", "MetaWorld")) for env_id in env_ids)
    vulkan = any(env_id.startswith("ManiSkill") for env_id in env_ids)
    return (
        Check(name="python", run=lambda: f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Check(name="torch", run=torch_device),
        Check(name="cache folder", run=lambda: str(check_writable(cache_dir()))),
        Check(name="GL", run=gl_backend, optional=not gl),
        Check(name="Vulkan", run=vulkan_device, optional=not vulkan),
        *(Check(name=env_id, run=partial(first_image, env_id)) for env_id in env_ids),
        *((Check(name="Plate25's assets", run=plate25_assets, optional=True),) if vulkan else ()),
        Check(name="datasets", run=dataset_reader, optional=True),
        Check(name="Hugging Face Hub", run=hub, optional=True),
    )


def torch_device() -> str:
    """Check torch; the device is that of `--device auto`."""
    import torch

    if torch.cuda.is_available():
        return f"{torch.__version__}, {torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    return f"{torch.__version__}, no CUDA device: policies run on {os.cpu_count()} CPU cores"


def gl_backend() -> str:
    """Check MuJoCo's renderer."""
    return f"MuJoCo renders with {rendering_environment(os.environ)['MUJOCO_GL']}"


def vulkan_device() -> str:
    """Check ManiSkill's rendering device."""
    if importlib.util.find_spec("sapien") is None:
        raise MissingDependency(f"only ManiSkill renders with Vulkan: {install_command('maniskill')}")
    kinds = {"cuda": "the GPU", "cpu": "the CPU, in software"}
    return f"ManiSkill renders on {kinds[sapien_device(os.environ)]}"


def first_image(env_id: str) -> str:
    """Check that a worker process builds the environment and renders an image of more than one colour."""
    from vla_gym import make_vec

    began = time.perf_counter()
    envs = make_vec(env_id, 1, num_workers=1, image_size=64)
    try:
        observation, _ = envs.reset(seed=0)
    finally:
        envs.close()
    image_HW3 = observation["image"][0]
    if image_HW3.min() == image_HW3.max():
        raise MissingDependency(
            f"the image is empty, every number is {image_HW3.flat[0]}: the driver renders nothing. "
            "Try another one: MUJOCO_GL=egl or MUJOCO_GL=osmesa"
        )
    return f"first image after {time.perf_counter() - began:.1f} s"


def plate25_assets() -> str:
    """Check for the published meshes and textures; without them, ManiSkill-Plate25 shows stand-ins."""
    from vla_gym.adapters.plate25.assets import DOWNLOAD, find_assets

    if find_assets().pack is None:
        raise MissingDependency(f"stand-ins are shown. Fetch the published files with: {DOWNLOAD}")
    return "the published files"


def dataset_reader() -> str:
    """Check for the package that `vla-zoo collect` and `vla-zoo sft` read and write datasets with."""
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingDependency(f"vla-zoo collect and vla-zoo sft need: {install_command('datasets')}")
    return f"pyarrow {version('pyarrow')}"


def hub() -> str:
    """Check that the Hub answers. Needed for published checkpoints and for `vla-zoo push_to_hub` alone."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise MissingDependency("HF_HUB_OFFLINE is set: nothing is downloaded; unset it to fetch checkpoints")
    try:
        request = urllib.request.Request(constants.ENDPOINT, method="HEAD")  # noqa: S310  the user's own setting
        urllib.request.urlopen(request, timeout=HUB_SECONDS).close()  # noqa: S310
    except urllib.error.HTTPError:
        pass  # it answered
    except OSError as error:
        raise MissingDependency(
            f"{constants.ENDPOINT} does not answer ({error}). Only published checkpoints and uploads need it; "
            "behind a proxy set HTTPS_PROXY, for a mirror HF_ENDPOINT"
        ) from error
    return f"{constants.ENDPOINT} answers"
