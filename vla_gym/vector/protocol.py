"""`EnvConfig`, the settings of an environment, and `protocol.json`, everything a success rate depends on."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from gymnasium.vector import AutoresetMode

from vla_gym.errors import BadValue, check_known
from vla_gym.observation import ObservationLayout, check_instruction
from vla_gym.specs import Benchmark, RewardRule, Task
from vla_gym.system.rendering import rendering_environment
from vla_gym.system.vulkan import DEVICE_VARIABLE, sapien_device
from vla_gym.workers.pool import OnWorkerError

CORE_PACKAGES = ("vla-zoo", "gymnasium", "numpy")


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """Checked arguments of `make_vec`, which documents them."""

    num_envs: int
    chunk: int
    group_size: int
    group_offset: int
    split: str
    schedule: str
    image_size: int
    cameras: tuple[str, ...]
    num_workers: int
    pipeline_stages: int
    autoreset_mode: AutoresetMode
    reward: RewardRule
    on_worker_error: OnWorkerError
    step_timeout: float
    reset_timeout: float
    draw_every: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    """The benchmark's own options."""
    own_instructions: Mapping[str, str] = field(default_factory=dict)
    """Task name -> the benchmark's own instruction, where `instructions` changed it."""


def observation_layout(benchmark: Benchmark, config: EnvConfig) -> ObservationLayout:
    """Return the layout of one environment's observation."""
    return ObservationLayout(
        cameras=config.cameras,
        image_size=config.image_size,
        state_dim=benchmark.state_dim,
        privileged_dim=benchmark.privileged_dim,
    )


def protocol_record(benchmark: Benchmark, config: EnvConfig) -> dict[str, Any]:
    """Return suite, tasks, horizons, cameras, renderer, versions ... as JSON values."""
    return {
        "env_id": benchmark.id,
        "simulator": benchmark.simulator,
        "simulator_kwargs": dict(benchmark.simulator_kwargs),
        "constants": dict(benchmark.protocol),
        "tasks": [{"task_id": task_id, **dataclasses.asdict(task)} for task_id, task in enumerate(benchmark.tasks)],
        "own_instructions": dict(config.own_instructions),
        "action_dim": benchmark.action_dim,
        "action_spec": dataclasses.asdict(benchmark.action_spec),
        "state_dim": benchmark.state_dim,
        "control_hz": benchmark.control_hz,
        "cameras": list(config.cameras),
        "image_size": config.image_size,
        "chunk": config.chunk,
        "split": config.split,
        "schedule": config.schedule,
        "group_size": config.group_size,
        "reward": dataclasses.asdict(config.reward),
        "options": dict(config.options),
        "renderer": renderer(benchmark),
        "versions": versions(benchmark.requires),
    }


def renderer(benchmark: Benchmark) -> dict[str, str]:
    """Return MuJoCo's GL backend, SAPIEN's kind of device, or NumPy; not which GPU it was."""
    if "mani_skill" in benchmark.requires:
        return {"name": "sapien", DEVICE_VARIABLE: sapien_device(os.environ).partition(":")[0]}
    if "mujoco" not in benchmark.requires:
        return {"name": "numpy"}
    chosen = rendering_environment(os.environ)
    chosen.pop("MUJOCO_EGL_DEVICE_ID", None)
    return chosen


def versions(modules: tuple[str, ...]) -> dict[str, str]:
    """Return versions of Python, of the core packages, and of each distribution that provides one of `modules`."""
    owners = metadata.packages_distributions()
    names = {*CORE_PACKAGES, *(name for module in modules for name in owners.get(module, ()))}
    found = {"python": platform.python_version()}
    for name in sorted(names):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed as a distribution"
    return found


Instructions = Mapping[str, str] | Callable[[Task], str]
"""Task name -> text (tasks left out keep theirs), or a function, called once for every task."""


def with_instructions(benchmark: Benchmark, instructions: Instructions) -> Benchmark:
    """Return the benchmark with other instructions; nothing else about its tasks changes.

    Raises `UnknownName` for a task that does not exist and `BadValue` for a text that is not allowed.
    """
    if callable(instructions):
        instructions = {task.name: instructions(task) for task in benchmark.tasks}
    elif not isinstance(instructions, Mapping):
        raise BadValue(
            f"instructions must map task names to texts, or be a function of a task, got {type(instructions).__name__}"
        )
    texts, names = dict(instructions), {task.name for task in benchmark.tasks}
    for name, text in texts.items():
        check_known(f"task of {benchmark.id}", name, names)
        check_instruction(text)
    tasks = (dataclasses.replace(task, instruction=texts.get(task.name, task.instruction)) for task in benchmark.tasks)
    return dataclasses.replace(benchmark, tasks=tuple(tasks))


def changed_instructions(before: Benchmark, after: Benchmark) -> dict[str, str]:
    """Task name -> the benchmark's own instruction, of the tasks whose instruction differs."""
    pairs = zip(before.tasks, after.tasks, strict=True)
    return {old.name: old.instruction for old, new in pairs if old.instruction != new.instruction}
