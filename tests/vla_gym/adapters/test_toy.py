from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from vla_gym import make_vec
from vla_gym.adapters import toy
from vla_gym.adapters.toy import COLOURS, STEP, ToyReach, toy_benchmark
from vla_gym.specs import StartState

STARTS = [StartState(task_id=task, trial_id=trial) for task in range(3) for trial in range(50)]


def make_toy(split: str = "train", cameras: tuple[str, ...] = ("image",), size: int = 32) -> ToyReach:
    return ToyReach(toy_benchmark("Toy-Reach").tasks, size, cameras, split=split)


def block_in_picture(image: np.ndarray, colour: str) -> np.ndarray:
    """Centre (x, y) of the block of a colour, in table sides, by looking."""
    rows, columns = np.nonzero((image == COLOURS[colour]).all(axis=2))
    return (np.array([columns.mean(), rows.mean()]) + 0.5) / len(image)


def towards(obs: Mapping[str, Any], slot: int, colour: str) -> np.ndarray:
    """Action `[1, 2]` that goes straight to the block of `colour`, by picture and state alone."""
    gripper = (obs["state"][slot] + 1.0) / 2.0
    return np.clip((block_in_picture(obs["image"][slot], colour) - gripper) / STEP, -1, 1)[None]


def success_rate(choose: Any) -> float:
    """Over all 150 start states; `choose(obs, slot)` gives an action `[1, 2]`."""
    envs = make_vec("Toy-Reach", 6, schedule="grid", autoreset_mode="disabled", seed=1)
    obs, _ = envs.reset()
    solved: list[bool] = []
    while not envs.idle.all():
        idle_N = envs.idle
        action = [[[0, 0]] if idle_N[slot] else choose(obs, slot) for slot in range(6)]
        obs, _, terminated, truncated, infos = envs.step(action)
        if "episode" in infos:
            solved += infos["episode"]["success_once"][infos["_episode"]].tolist()
        if (terminated | truncated).any():
            obs, _ = envs.reset(options={"reset_mask": terminated | truncated})
    assert len(solved) == 150
    return float(np.mean(solved))


def test_reading_picture_and_sentence_solves_every_episode() -> None:
    assert success_rate(lambda obs, slot: towards(obs, slot, obs["instruction"][slot].split()[2])) == 1.0


def test_the_picture_without_the_sentence_is_not_enough() -> None:
    assert success_rate(lambda obs, slot: towards(obs, slot, "red")) == pytest.approx(1 / 3, abs=0.02)


def test_touching_the_named_block_solves_and_touching_another_ends() -> None:
    simulator = make_toy()
    for colour, solved in (("green", True), ("blue", False)):
        simulator.reset(StartState(task_id=1, trial_id=0))
        x, y = simulator._blocks[list(COLOURS).index(colour)]
        for _ in range(toy.HORIZON):
            to = np.array([x - simulator._x, y - simulator._y]) / STEP
            outcome = simulator.step(np.clip(to, -1, 1).astype(np.float32))
            if outcome.terminated:
                break
        assert (outcome.success, outcome.reward, outcome.terminated) == (solved, float(solved), True)


def test_actions_move_the_gripper_and_the_table_has_edges() -> None:
    simulator = make_toy()
    simulator.reset(STARTS[0])
    simulator._blocks = [(9.0, 9.0)] * 3  # out of reach
    x, y = simulator._x, simulator._y
    assert not simulator.step(np.array([1.0, -0.5], dtype=np.float32)).terminated
    assert (simulator._x, simulator._y) == (pytest.approx(x + 0.15), pytest.approx(y - 0.075))
    for _ in range(10):
        simulator.step(np.array([-1.0, 1.0], dtype=np.float32))
    assert (simulator._x, simulator._y) == (0.0, 1.0)
    assert simulator.observe()["state"].tolist() == [-1.0, 1.0]
