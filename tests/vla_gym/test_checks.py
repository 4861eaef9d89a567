"""The contract's test passes what keeps it, and catches what breaks it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from vla_gym.adapters.toy import ToyReach, toy_benchmark
from vla_gym.checks import check_vla_env
from vla_gym.simulator import SimStep
from vla_gym.specs import Benchmark, StartState
from vla_gym.vector.step import EpisodeTable


def test_toy_reach_keeps_the_contract() -> None:
    check_vla_env("Toy-Reach", num_decisions=6, wrist_camera=True, image_size=24)


def knowing(monkeypatch: pytest.MonkeyPatch) -> Benchmark:
    """Toy-Reach with something to read for scripted experts: its state, twice as long."""

    def privileged(self: ToyReach) -> np.ndarray:
        return np.tile(self.observe()["state"], 2).astype(np.float64)

    monkeypatch.setattr(ToyReach, "privileged", privileged, raising=False)
    return dataclasses.replace(toy_benchmark("Toy-Reach"), privileged_dim=4)


def test_what_experts_read_is_part_of_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = knowing(monkeypatch)
    check_vla_env(benchmark, privileged=True)
    check_vla_env(benchmark, to_the_end=False)


def broken(monkeypatch: pytest.MonkeyPatch, name: str, method: Any) -> None:
    monkeypatch.setattr(ToyReach, name, method)
    check_vla_env(toy_benchmark("Toy-Reach"))


def test_black_images_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def observe(self: ToyReach) -> Mapping[str, np.ndarray]:
        return {"image": np.zeros((32, 32, 3), np.uint8), "state": np.zeros(2, np.float32)}

    with pytest.raises(AssertionError, match="images show something"):
        broken(monkeypatch, "observe", observe)


def test_differing_start_states_in_a_group_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ToyReach.reset
    count = iter(range(1000))

    def reset(self: ToyReach, start: StartState) -> str:
        return original(self, start) + f"{next(count):04x}"

    with pytest.raises(AssertionError, match="share their start_state"):
        broken(monkeypatch, "reset", reset)


def test_chance_in_a_step_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ToyReach.step
    rng = np.random.default_rng(0)

    def step(self: ToyReach, action_A: np.ndarray) -> SimStep:
        return original(self, action_A + rng.normal(0, 0.3, 2))

    with pytest.raises(AssertionError, match="the same seed and actions give the same"):
        broken(monkeypatch, "step", step)


def test_a_memory_of_the_last_episode_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ToyReach.step

    def step(self: ToyReach, action_A: np.ndarray) -> SimStep:
        self.ever = getattr(self, "ever", 0) + 1  # type: ignore[attr-defined]
        return original(self, action_A * (1 + self.ever))  # type: ignore[attr-defined]

    with pytest.raises(AssertionError, match=r"same observations|continues bit for bit"):
        broken(monkeypatch, "step", step)


def test_a_wrong_instruction_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = EpisodeTable.instructions
    monkeypatch.setattr(EpisodeTable, "instructions", lambda table: ("reach out", *original(table)[1:]))
    with pytest.raises(AssertionError, match="slot 0 has its task's instruction"):
        check_vla_env("Toy-Reach", to_the_end=False)
