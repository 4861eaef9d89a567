"""What a machine must have: one check per need, each a function that says what is there or raises what to do."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import numpy as np

from vla_gym.errors import MissingDependency, VLAZooError
from vla_gym.system.cache import cache_dir, check_writable
from vla_gym.system.rendering import rendering_environment
from vla_gym.system.vulkan import sapien_device

OLDEST_PYTHON = (3, 11)
HUB_SECONDS = 5.0
PICTURE_SIZE = 64
PICTURES = ("LIBERO-Spatial/0", "MetaWorld/reach", "ManiSkill/PushCube", "ManiSkill-Plate25")
"""One environment of each benchmark, all of whose parts its first picture needs."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One need."""

    name: str
    look: Callable[[], str]
    """Says what is there; raises `VLAZooError` with what to do when it is missing."""
    optional: bool = False
    """Does everything else work without it?"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check came to."""

    name: str
    ok: bool
    detail: str
    """What is there, or what to do."""
    optional: bool

    def __str__(self) -> str:
        word = "ok" if self.ok else "without" if self.optional else "missing"
        return f"{word:<8} {self.name:<20} {self.detail}"


def checks(env_ids: Sequence[str] = PICTURES) -> tuple[Check, ...]:
    """Everything that is looked at, in order; one picture of each of `env_ids`."""
    return (
        Check(name="python", look=python_version),
        Check(name="torch", look=torch_device),
        Check(name="cache folder", look=writable_cache),
        Check(name="GL", look=gl_backend, optional=not any(map(_draws_with_gl, env_ids))),
        Check(name="Vulkan", look=vulkan_device, optional=not any(map(_draws_with_vulkan, env_ids))),
        *(Check(name=env_id, look=partial(first_picture, env_id)) for env_id in env_ids),
        Check(name="Plate25's assets", look=plate25_assets, optional=True),
        Check(name="datasets", look=dataset_reader, optional=True),
        Check(name="Hugging Face Hub", look=hub, optional=True),
    )


def examine(these: Sequence[Check]) -> Iterator[Finding]:
    """Do the checks one by one."""
    for check in these:
        try:
            detail, ok = check.look(), True
        except VLAZooError as error:
            detail, ok = " ".join(str(error).split()), False
        yield Finding(name=check.name, ok=ok, detail=detail, optional=check.optional)


def python_version() -> str:
    """3.11 or later."""
    if sys.version_info < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise MissingDependency(
            f"Python {platform.python_version()} is too old: install Python {oldest} or later"
        )
    return f"{platform.python_version()} on {platform.system()} {platform.machine()}"


def torch_device() -> str:
    """Torch and the device that `--device auto` takes."""
    if importlib.util.find_spec("torch") is None:
        raise MissingDependency("no module torch. Install it with: pip install vla-zoo")
    import torch

    if torch.cuda.is_available():
        return f"{torch.__version__}, {torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    return f"{torch.__version__}, no CUDA device: policies run on {os.cpu_count()} CPU cores"


def writable_cache() -> str:
    """The folder for compiled scenes can be written to."""
    return str(check_writable(cache_dir()))


def gl_backend() -> str:
    """What MuJoCo draws with."""
    return f"MuJoCo draws with {rendering_environment(os.environ)['MUJOCO_GL']}"


def vulkan_device() -> str:
    """What ManiSkill draws on."""
    if importlib.util.find_spec("sapien") is None:
        raise MissingDependency('only ManiSkill draws with Vulkan: pip install "vla-zoo[maniskill]"')
    kinds = {"cuda": "the GPU", "cpu": "the CPU, in software"}
    return f"ManiSkill draws on {kinds[sapien_device(os.environ)]}"


def first_picture(env_id: str) -> str:
    """A worker process builds the environment and draws; raises too when the picture is of one colour."""
    from vla_gym import make_vec

    began = time.perf_counter()
    envs = make_vec(env_id, 1, num_workers=1, image_size=PICTURE_SIZE)
    try:
        observation, _ = envs.reset(seed=0)
    finally:
        envs.close()
    look_at(observation["image"][0])
    return f"first picture after {time.perf_counter() - began:.1f} s"


def look_at(image_HW3: np.ndarray) -> None:
    """Raises `MissingDependency` for a picture that is all of one colour."""
    if image_HW3.min() == image_HW3.max():
        raise MissingDependency(
            f"the picture is empty, every number is {image_HW3.flat[0]}: the driver draws nothing. "
            "Try another one: MUJOCO_GL=egl or MUJOCO_GL=osmesa"
        )


def plate25_assets() -> str:
    """The published meshes and pictures; without them, ManiSkill-Plate25 shows stand-ins."""
    from vla_gym.adapters.plate25.assets import DOWNLOAD, find_assets

    if find_assets().pack is None:
        raise MissingDependency(f"stand-ins are shown. Fetch the published files with: {DOWNLOAD}")
    return "the published files"


def dataset_reader() -> str:
    """What `zoo.collect` and `zoo.sft` read and write datasets with."""
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingDependency('zoo.collect and zoo.sft need: pip install "vla-zoo[datasets]"')
    return f"pyarrow {version('pyarrow')}"


def hub() -> str:
    """Does the Hub answer? Needed for published checkpoints and for `zoo.push_to_hub` alone."""
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


def _draws_with_gl(env_id: str) -> bool:
    return env_id.startswith(("LIBERO", "MetaWorld"))


def _draws_with_vulkan(env_id: str) -> bool:
    return env_id.startswith("ManiSkill")
