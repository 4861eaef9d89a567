"""Scripted experts: they read a simulator's privileged state and solve its tasks. Where demonstrations come from."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

import numpy as np

from vla_gym.errors import BadValue
from vla_gym.specs import Benchmark, Task

EXPERTS: dict[str, str] = {
    "vla_gym.adapters.libero:LiberoSimulator": "zoo.experts.libero:LiberoExpert",
    "vla_gym.adapters.metaworld:MetaWorldSimulator": "zoo.experts.metaworld:MetaWorldExpert",
    "vla_gym.adapters.maniskill:ManiSkillSimulator": "zoo.experts.maniskill:ManiSkillExpert",
    "vla_gym.adapters.plate25.simulator:Plate25Simulator": "zoo.experts.maniskill:Plate25Expert",
}
"""Simulator entry point of a benchmark -> "module:Class" of its expert, imported only when it is made."""


class Expert(Protocol):
    """Acts in one environment, one simulator step at a time. The constructor is called as `Class(task)`."""

    def __init__(self, task: Task) -> None: ...

    def action(self, privileged_P: np.ndarray) -> np.ndarray:
        """Return float32 `[A]` in [-1, 1] for float64 `[P]` of the simulator's `privileged`."""


def expert_class(benchmark: Benchmark) -> type[Expert]:
    """Return the expert of a benchmark; raise `BadValue` where there is none."""
    if benchmark.simulator not in EXPERTS or not benchmark.privileged_dim:
        raise BadValue(f"{benchmark.id} has no scripted expert; docs/demonstrations.md lists the tasks that have one")
    module, _, name = EXPERTS[benchmark.simulator].partition(":")
    found: type[Expert] = getattr(import_module(module), name)
    return found
