"""`Simulator`: the interface of every benchmark adapter, one simulator inside a worker process.

`vla_gym.workers.worker.SubEnv` adds chunks, time limits and episode statistics; an adapter only restores a start
state, advances one policy step, and renders.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vla_gym.specs import StartState, Task


@dataclass(frozen=True)
class SimStep:
    """Outcome of one policy step."""

    reward: float
    """Benchmark's own sparse reward of this step."""
    success: bool
    """Whether the task is solved in the state reached."""
    terminated: bool
    """Whether the episode ends here by the task's own rule (never by time)."""
    truncated: bool = False
    """Whether the simulator itself cuts the episode off here, before the task's horizon."""


class Simulator(Protocol):
    """One simulator. The constructor is called as `Class(tasks, image_size, cameras, **simulator_kwargs)`: the
    benchmark's tasks, the side of its square images in pixels, and the observation keys of the cameras to render.

    Rules: no rendering outside `observe`; the same start state gives the same bytes, whatever came
    before; `step` never resets; NumPy arrays returned are fresh (or copied by the caller at once).
    """

    def __init__(
        self, tasks: tuple[Task, ...], image_size: int, cameras: tuple[str, ...], **kwargs: object
    ) -> None: ...

    def reset(self, start: StartState) -> str:
        """Restore a start state (settled, nothing rendered) and return its hash.

        The hash is a hex string, equal exactly when two episodes begin in the same simulator
        state (positions, velocities, and everything else that moves bodies, fixtures included).
        """

    def step(self, action_A: np.ndarray) -> SimStep:
        """Advance one policy step with a float32 action `[A]` in [-1, 1]."""

    def observe(self) -> Mapping[str, np.ndarray]:
        """Render now: `{"image": u8[H, W, 3], "wrist_image": ..., "state": f32[S]}`, only the constructor's cameras."""

    def close(self) -> None:
        """Free the simulator and its GL context."""

    # A benchmark that declares a `privileged_dim` P also has `privileged(self) -> np.ndarray`: float64 `[P]`, the
    # present state as scripted experts read it.


def loaded_late(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package of simulators: class -> its module, imported on first use by workers."""

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return pkgutil.resolve_name(f"{package}.{modules[name]}:{name}")

    return load
