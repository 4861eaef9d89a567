"""Toy-Reach with a simulator that takes its time: what other benchmarks put in a real simulator's place."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vla_gym.adapters.toy import ToyReach, toy_benchmark
from vla_gym.registry import register_benchmark
from vla_gym.simulator import SimStep
from vla_gym.specs import Benchmark, StartState, Task
from vla_gym.workers.batch_pool import BatchStep


class SleepingToy(ToyReach):
    """A toy whose every step takes `seconds`, and which does not move, so that episodes last as long as they may."""

    def __init__(self, *args: Any, seconds: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seconds = seconds

    def step(self, action_A: np.ndarray) -> SimStep:
        """See `vla_gym.simulator.Simulator.step`."""
        time.sleep(self._seconds)
        return super().step(action_A * 0.0)


class ToyBatch:
    """Toy-Reach's own simulators as one batch, as GPU physics is."""

    def __init__(
        self,
        tasks: tuple[Task, ...],
        image_size: int,
        cameras: tuple[str, ...],
        *,
        num_envs: int,
        num_workers: int,
        **options: Any,
    ) -> None:
        self._toys = [ToyReach(tasks, image_size, cameras, **options) for _ in range(num_envs)]
        for toy in self._toys:
            toy.reset(StartState(task_id=0, trial_id=0))

    def reset(self, starts: Mapping[int, StartState]) -> dict[int, str]:
        """See `vla_gym.workers.batch_pool.BatchSimulator`, also for the others."""
        return {slot: self._toys[slot].reset(start) for slot, start in starts.items()}

    def step(self, action_NA: np.ndarray) -> BatchStep:
        """See there."""
        outcomes = [toy.step(action_A) for toy, action_A in zip(self._toys, action_NA, strict=True)]
        return BatchStep(
            reward_N=np.array([outcome.reward for outcome in outcomes]),
            success_N=np.array([outcome.success for outcome in outcomes]),
            terminated_N=np.array([outcome.terminated for outcome in outcomes]),
        )

    def save(self, slots: Sequence[int]) -> Any:
        """See there."""
        return [copy.deepcopy(self._toys[slot]) for slot in slots]

    def restore(self, held: Sequence[tuple[Sequence[int], Any]]) -> None:
        """See there."""
        for slots, saved in held:
            for slot, toy in zip(slots, saved, strict=True):
                self._toys[slot] = toy

    def observe(self) -> Mapping[str, np.ndarray]:
        """See there."""
        observations = [toy.observe() for toy in self._toys]
        return {key: np.stack([observation[key] for observation in observations]) for key in observations[0]}

    def close(self) -> None:
        """Nothing is held."""


class SleepingBatch(ToyBatch):
    """A batch that does not move: a step takes `seconds` for each of the toys."""

    def __init__(self, *args: Any, seconds: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seconds = seconds * len(self._toys)

    def step(self, action_NA: np.ndarray) -> BatchStep:
        """See there."""
        time.sleep(self._seconds)
        return super().step(action_NA * 0.0)


def sleeping_batch(*, seconds: float) -> Benchmark:
    """Toy-Reach on `SleepingBatch`."""
    alone = sleeping_benchmark("Sleeping-Batch", seconds=seconds)
    return dataclasses.replace(alone, simulator="benchmarks.sleeping_toy:SleepingBatch", batched=True)


def sleeping_benchmark(env_id: str = "Sleeping-Toy", *, split: str = "train", seconds: float = 0.01) -> Benchmark:
    """Toy-Reach with steps of `seconds`, in worker processes unless told otherwise."""
    return dataclasses.replace(
        toy_benchmark(env_id, split=split),
        simulator="benchmarks.sleeping_toy:SleepingToy",
        simulator_kwargs={"seconds": seconds},
        in_process=False,
    )


register_benchmark("benchmarks.sleeping_toy:sleeping_benchmark", {"Sleeping-Toy": 3})
