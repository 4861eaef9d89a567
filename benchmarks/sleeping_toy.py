"""Toy-Reach with a simulator that takes its time: what other benchmarks put in a real simulator's place."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np

from vla_gym.adapters.toy import ToyReach, toy_benchmark
from vla_gym.registry import register_benchmark
from vla_gym.simulator import SimStep
from vla_gym.specs import Benchmark


class SleepingToy(ToyReach):
    """A toy whose every step takes `seconds`, and which does not move, so that episodes last as long as they may."""

    def __init__(self, *args: Any, seconds: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seconds = seconds

    def step(self, action_A: np.ndarray) -> SimStep:
        """See `vla_gym.simulator.Simulator.step`."""
        time.sleep(self._seconds)
        return super().step(action_A * 0.0)


def sleeping_benchmark(env_id: str = "Sleeping-Toy", *, split: str = "train", seconds: float = 0.01) -> Benchmark:
    """Toy-Reach with steps of `seconds`, in worker processes unless told otherwise."""
    return dataclasses.replace(
        toy_benchmark(env_id, split=split),
        simulator="benchmarks.sleeping_toy:SleepingToy",
        simulator_kwargs={"seconds": seconds},
        in_process=False,
    )


register_benchmark("benchmarks.sleeping_toy:sleeping_benchmark", {"Sleeping-Toy": 3})
