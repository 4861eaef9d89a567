"""Checks of a machine, and of an environment by its expert.

A requirement of the machine is a function that returns a description, or raises with the remedy. An expert is replayed
through our environments, beside its measured success: a failure means that the environment does not take actions as
declared, and no policy is at fault.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version

from vla_gym import find_benchmark, make_vec
from vla_gym.adapters.metaworld.tasks import MT10
from vla_gym.errors import MissingDependency, VLAZooError
from vla_gym.specs import Task
from vla_gym.system.extras import install_command
from vla_gym.system.paths import cache_dir, check_writable
from vla_gym.system.rendering import rendering_environment
from vla_gym.system.vulkan import sapien_device
from zoo.config.settings import Options
from zoo.demonstrations.recorder import demonstrate
from zoo.evaluation.evaluator import choose_start_states
from zoo.evaluation.statistics import Rate, together
from zoo.experts import expert_class

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


# Experts ------------------------------------------------------------------------------------------------

MOST_ENVS = 4
"""Simulators side by side; without images each needs little."""
ADVICE = (
    "worse than it should be: the environment does not take actions as declared (scale, gripper sign, frame), or its "
    "packages are others than `pip install` brings"
)
_LIBERO = {
    "libero_object": (
        *("alphabet_soup", "cream_cheese", "salad_dressing", "bbq_sauce", "ketchup"),
        *("tomato_sauce", "butter", "milk", "chocolate_pudding", "orange_juice"),
    ),
    "libero_spatial": (
        *("black_bowl_between_the_plate_and_the_ramekin", "black_bowl_next_to_the_ramekin"),
        *("black_bowl_from_table_center", "black_bowl_on_the_cookie_box", "black_bowl_on_the_ramekin"),
        *("black_bowl_in_the_top_drawer_of_the_wooden_cabinet", "black_bowl_next_to_the_cookie_box"),
        *("black_bowl_on_the_stove", "black_bowl_next_to_the_plate", "black_bowl_on_the_wooden_cabinet"),
    ),
}
"""Suite -> measured tasks, `THING` of "pick_up_the_THING_and_place_it_...", on their first 20 start states."""
_MANISKILL = ("PickCube", "PushCube", "PullCube", "StackCube", "PlaceSphere")
"""Measured on CPU physics, on the first 50 start states of the training split, as Meta-World's MT10."""
_META_WORLD_HORIZON = 100
"""Steps within which MT10 was measured."""
_FAILED = {"black_bowl_in_the_top_drawer_of_the_wooden_cabinet": 1, "StackCube": 1}
"""Task -> start states that its expert did not solve; the others' experts solved all."""


def expert_success_rate(tasks: Iterable[Task]) -> Rate | None:
    """Return the measured rate of experts on all tasks together; None where one was not measured.

    Measure again with `vla-zoo doctor --oracle --env ID --episodes N`.
    """
    rates = []
    for task in tasks:
        name, episodes = task.name, 50
        if task.suite in _LIBERO:
            name, episodes = name.removeprefix("pick_up_the_").partition("_and_place_it_")[0], 20
            measured = name in _LIBERO[task.suite]
        elif task.suite == "maniskill":
            measured = name in _MANISKILL
        else:
            measured = name in MT10 and task.horizon >= _META_WORLD_HORIZON
        if not measured:
            return None
        rates.append(Rate(label=name, successes=episodes - _FAILED.get(name, 0), episodes=episodes))
    return together("when it was measured", rates) if rates else None


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """Success of a replayed expert, beside its measured success."""

    tasks: tuple[Rate, ...]
    """Of each task that was tried."""
    known: Rate | None
    """The same tasks when they were measured; None where one was not."""

    @property
    def overall(self) -> Rate:
        """All episodes."""
        return together("all episodes", self.tasks)

    @property
    def below(self) -> bool:
        """Whether it is worse than known, both intervals apart; with nothing known, whether every episode failed."""
        if self.known is None:
            return self.overall.successes == 0
        return self.overall.interval[1] < self.known.interval[0]

    def __str__(self) -> str:
        rows = [*(self.tasks if len(self.tasks) > 1 else ()), self.overall, *([self.known] if self.known else ())]
        lines = ["success    95 % interval      k/n    task", *map(_row, rows)]
        if self.known is None:
            lines.append("nothing to compare with: this expert has not been measured on these tasks")
        return "\n".join([*lines, ADVICE if self.below else "as it should be"])


def replay(
    env_id: str,
    episodes: int | None,
    options: Options | None = None,
    *,
    on_episodes: Callable[[int], None] = lambda done: None,
) -> ReplayResult:
    """Let the expert of `env_id` act, without images; `episodes` as of `choose_start_states`.

    `options` are the benchmark's. Raises `BadValue` where there is no expert, or for more episodes than there are
    start states.
    """
    benchmark = replace(find_benchmark(env_id, **(options or {})), cameras=())
    make_expert = expert_class(benchmark)
    starts = choose_start_states(benchmark.tasks, episodes)
    envs = make_vec(benchmark, min(MOST_ENVS, len(starts)), chunk=1, privileged=True, autoreset_mode="disabled")
    solved: list[tuple[int, bool]] = []
    try:
        for begin in range(0, len(starts), envs.num_envs):
            batch = starts[begin : begin + envs.num_envs]
            played = demonstrate(envs, make_expert, [(start, 0) for start in batch])
            solved += [(start.task_id, episode.success) for start, episode in zip(batch, played, strict=True)]
            on_episodes(len(solved))
    finally:
        envs.close()
    return summarize(benchmark.tasks, solved)


def summarize(tasks: tuple[Task, ...], outcomes: list[tuple[int, bool]]) -> ReplayResult:
    """Count (task id, success) per task, beside the measured rate of the same tasks."""
    by_task: dict[int, list[bool]] = {}
    for task_id, success in sorted(outcomes):
        by_task.setdefault(task_id, []).append(success)
    return ReplayResult(
        tasks=tuple(
            Rate(label=tasks[task_id].name, successes=sum(successes), episodes=len(successes))
            for task_id, successes in by_task.items()
        ),
        known=expert_success_rate([tasks[task_id] for task_id in by_task]),
    )


def _row(rate: Rate) -> str:
    low, high = rate.interval
    counts = f"{rate.successes}/{rate.episodes}"
    return f"{rate.mean:>7.1%}  [{low:>6.1%}, {high:>6.1%}]  {counts:>7}    {rate.label}"
