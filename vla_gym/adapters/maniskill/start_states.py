"""Start states of ManiSkill's tasks as rows of numbers, drawn on CPU physics for a batch on other physics.

Upstream draws a batch's start states from one stream of numbers, so that a slot's depends on how many slots there are.
Here trial k is upstream's `reset(seed=k)` of a single environment, whatever the batch: the CPU adapter's own state.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import numpy as np

from vla_gym.adapters.maniskill.simulator import ManiSkillSimulator
from vla_gym.observation import ObservationLayout
from vla_gym.rewards import RewardRule
from vla_gym.specs import StartState, Task
from vla_gym.workers.environment import BLAS_THREADS
from vla_gym.workers.pool import Command, LocalPool, Pool, SubEnvSetup
from vla_gym.workers.process_pool import ProcessPool
from vla_gym.workers.shared_memory import MemoryLayout

TIMEOUT = 600.0
"""Seconds a worker may take to start, or to draw one state."""


class StartSource(ManiSkillSimulator):
    """The CPU adapter without pictures; its observation is upstream's flat state row."""

    def __init__(
        self, tasks: tuple[Task, ...], image_size: int, cameras: tuple[str, ...], *, first_seed: int
    ) -> None:
        super().__init__(tasks, image_size, (), first_seed=first_seed)

    def observe(self) -> dict[str, np.ndarray]:
        """`state`: float32 `[D]`, poses and velocities of all bodies and joints."""
        return {"state": np.array(self._env.get_state()[0].numpy(), dtype=np.float32)}


class StartTable:
    """Trial -> (fingerprint, state row float32 `[D]`), each drawn once, on first use, in worker processes.

    Args:
        task: the benchmark's only one.
        first_seed: upstream's seed of trial 0.
        state_dim: D.
        num_workers: processes that draw; 0 draws in this one.
    """

    def __init__(self, task: Task, *, first_seed: int, state_dim: int, num_workers: int) -> None:
        self._known: dict[int, tuple[str, np.ndarray]] = {}
        self._width = max(1, num_workers)
        setup = SubEnvSetup(
            env_id=f"start states of ManiSkill/{task.name}",
            simulator=f"{__name__}:{StartSource.__name__}",
            simulator_kwargs={"first_seed": first_seed},
            tasks=(task,),
            rule=RewardRule(),
            memory=MemoryLayout(
                num_slots=self._width,
                chunk=1,
                action_dim=7,
                observation=ObservationLayout(cameras=(), image_size=8, state_dim=state_dim),
            ),
        )
        self._pool: Pool
        if num_workers:
            environment = {
                **os.environ,
                **dict.fromkeys(BLAS_THREADS, "1"),
                "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            }
            self._pool = ProcessPool(
                setup, [environment] * num_workers, step_timeout=TIMEOUT, reset_timeout=TIMEOUT
            )
        else:
            self._pool = LocalPool(setup)

    def rows(self, trials: Iterable[int]) -> list[tuple[str, np.ndarray]]:
        """Fingerprint and state row of each trial."""
        wanted = list(trials)
        missing = sorted(set(wanted) - self._known.keys())
        for begin in range(0, len(missing), self._width):
            some = missing[begin : begin + self._width]
            reports = self._pool.run(
                [
                    Command(slot=slot, start=StartState(task_id=0, trial_id=trial), kind="reset")
                    for slot, trial in enumerate(some)
                ]
            )
            for slot, (trial, report) in enumerate(zip(some, reports, strict=True)):
                self._known[trial] = (report.fingerprint, self._pool.memory.observation["state"][slot].copy())
        return [self._known[trial] for trial in wanted]

    def close(self) -> None:
        """End the workers."""
        self._pool.close()
