"""Toy-Reach by an arm with actions, cameras and a state of LIBERO's sizes; and what it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from vla_gym.adapters.toy import ToyReach, toy_benchmark
from vla_gym.simulator import SimStep
from vla_gym.specs import Benchmark
from vla_policies.openvla.family import LIBERO_SPEC

PLAYED: list[np.ndarray] = []
"""Actions of all episodes since the list was emptied."""


def arm_benchmark(env_id: str, *, split: str = "train") -> Benchmark:
    """Describe it; it runs in this process."""
    toy = toy_benchmark(env_id, split=split)
    return replace(
        toy,
        action_dim=7,
        action_spec=LIBERO_SPEC,
        state_dim=8,
        simulator="tests.zoo.cli.arm_reach:ArmReach",
        tasks=tuple(replace(task, suite="libero_spatial") for task in toy.tasks),
    )


class ArmReach(ToyReach):
    """The first two numbers move the gripper."""

    def step(self, action_A: np.ndarray) -> SimStep:
        PLAYED.append(action_A.copy())
        return super().step(action_A[:2])

    def observe(self) -> Mapping[str, np.ndarray]:
        seen = super().observe()
        return {**seen, "state": np.resize(seen["state"], 8)}
