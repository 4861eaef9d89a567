"""What a result must be read with: suite, tasks, horizons, cameras, renderer, versions (`protocol.json`)."""

from __future__ import annotations

import dataclasses
import os
import platform
from importlib import metadata
from typing import Any

from vla_gym.specs import Benchmark
from vla_gym.system.rendering import rendering_environment
from vla_gym.system.vulkan import sapien_environment
from vla_gym.vector.env_config import EnvConfig

CORE_PACKAGES = ("vla-zoo", "gymnasium", "numpy")


def protocol_record(benchmark: Benchmark, config: EnvConfig) -> dict[str, Any]:
    """JSON values that name everything a success rate of this environment depends on."""
    return {
        "env_id": benchmark.id,
        "simulator": benchmark.simulator,
        "simulator_kwargs": dict(benchmark.simulator_kwargs),
        "constants": dict(benchmark.protocol),
        "tasks": [
            {"task_id": task_id, **dataclasses.asdict(task)} for task_id, task in enumerate(benchmark.tasks)
        ],
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
    """What draws the pictures: MuJoCo's GL backend, SAPIEN's device, or NumPy for benchmarks without either."""
    if "mani_skill" in benchmark.requires:
        return {"name": "sapien", **sapien_environment(os.environ)}
    if "mujoco" not in benchmark.requires:
        return {"name": "numpy"}
    return rendering_environment(os.environ)


def versions(modules: tuple[str, ...]) -> dict[str, str]:
    """Version of Python, of the core packages, and of each distribution that brings one of `modules`."""
    owners = metadata.packages_distributions()
    names = {*CORE_PACKAGES, *(name for module in modules for name in owners.get(module, ()))}
    found = {"python": platform.python_version()}
    for name in sorted(names):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed as a distribution"
    return found
