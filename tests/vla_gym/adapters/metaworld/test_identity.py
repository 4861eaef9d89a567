"""Our Meta-World gives upstream's own numbers: states, observations, rewards, success, start states, pictures."""

from __future__ import annotations

import os
import pickle  # noqa: TID251  upstream's Task objects hold pickles; only this comparison reads them
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vla_gym.adapters.metaworld.tasks import ML45_TEST, MT10, TASKS, expert_name, metaworld_benchmark
from vla_gym.specs import StartState
from vla_gym.workers.process_pool import worker_environment

pytest.importorskip("metaworld")
pytestmark = [pytest.mark.sim, pytest.mark.filterwarnings("ignore:Constant.s. may be too high")]
RECORDER = Path(__file__).with_name("metaworld_recorder.py")
QUICK = ("reach", "hammer", "pick-place", "window-open", "stick-pull", "bin-picking")
"""One task of each kind: no object, orientation in the reward, contact search, stale reset, two objects, two trials."""


def simulator(task: str, **options: Any) -> Any:
    from vla_gym.adapters.metaworld.simulator import MetaWorldSimulator

    benchmark = metaworld_benchmark(f"MetaWorld/{task}", **options)
    return MetaWorldSimulator(benchmark.tasks, 64, ("image",), **dict(benchmark.simulator_kwargs))


def expert(task: str) -> Any:
    import metaworld.policies

    return getattr(metaworld.policies, expert_name(task))()


def check_task(task: str) -> None:
    import metaworld

    from vla_gym.adapters.metaworld.simulator import make_env, start_vectors

    env: Any = make_env(task)
    generator_before = np.random.get_state()[1].tolist()
    vectors = start_vectors(env, 42, 60)
    assert np.random.get_state()[1].tolist() == generator_before
    benchmark = metaworld.MT1(f"{task}-v3", seed=42)
    assert len(np.unique(vectors, axis=0)) == 60  # those after the 50th are drawn on, not repeated
    for vector, upstream_task in zip(vectors[:50], benchmark.train_tasks, strict=True):
        np.testing.assert_array_equal(vector, pickle.loads(upstream_task.data)["rand_vec"])  # noqa: S301
    upstream = benchmark.train_classes[f"{task}-v3"]()
    scripted = expert(task)
    rng = np.random.default_rng(0)
    moved = 0.0
    for trial, steps in ((1, 30), (0, 120)):
        upstream.set_task(benchmark.train_tasks[trial])
        observation, _ = upstream.reset()
        env.freeze(vectors[trial])
        env.reset()
        first = env.data.qpos.copy()
        np.testing.assert_array_equal(first, upstream.data.qpos)
        for _ in range(steps):
            action = rng.uniform(-1, 1, 4) if trial else scripted.get_action(observation)
            action = np.clip(action, -1, 1).astype(np.float32)
            observation, reward, _, _, info = upstream.step(action)
            assert env.advance(action) == (float(reward), bool(info["success"]))
            np.testing.assert_array_equal(env.data.qpos, upstream.data.qpos)
            np.testing.assert_array_equal(env.data.qvel, upstream.data.qvel)
            full = env.full_observation()
            np.testing.assert_array_equal(full[:18], observation[:18])
            np.testing.assert_array_equal(full[36:], observation[36:])
            np.testing.assert_array_equal(env.proprio(), observation[:4])
        moved = max(moved, float(np.abs(env.data.qpos - first).max()))
    assert moved > 0.05, "nothing moved, so the comparison says nothing"


@pytest.mark.parametrize("task", QUICK)
def test_steps_and_start_states_are_bit_identical_to_upstream(task: str) -> None:
    check_task(task)


@pytest.mark.thorough
@pytest.mark.parametrize("task", [task for task in TASKS if task not in QUICK])
def test_the_other_tasks_are_bit_identical_to_upstream_too(task: str) -> None:
    check_task(task)


def test_the_names_and_sets_are_the_package_s() -> None:
    from metaworld import env_dict

    def names(table: Any) -> list[str]:
        return [name.removesuffix("-v3") for name in table]

    assert set(names(env_dict.ALL_V3_ENVIRONMENTS)) == set(TASKS)
    assert names(env_dict.MT10_V3) == list(MT10)
    assert names(env_dict.ML45_V3["test"]) == list(ML45_TEST)
    assert set(names(env_dict.ML45_V3["train"])) == set(TASKS) - set(ML45_TEST)
    for task in TASKS:
        expert(task)


@pytest.mark.parametrize("task", ["hammer", pytest.param("window-open", marks=pytest.mark.thorough)])
def test_a_start_state_is_one_state_whatever_came_before(task: str) -> None:
    first, second = simulator(task), simulator(task)
    start, other = StartState(task_id=0, trial_id=4), StartState(task_id=0, trial_id=9)
    fingerprint = first.reset(start)
    fresh = first._env.data.qpos.copy(), first._env.model.body_pos.copy(), first._env.proprio()
    assert second.reset(other) != fingerprint
    for action in np.random.default_rng(1).uniform(-1, 1, (25, 4)).astype(np.float32):
        second.step(action)
    assert second.reset(start) == fingerprint
    again = second._env.data.qpos, second._env.model.body_pos, second._env.proprio()
    for before, after in zip(fresh, again, strict=True):
        np.testing.assert_array_equal(before, after)
    for action in np.random.default_rng(2).uniform(-1, 1, (20, 4)).astype(np.float32):
        assert first.step(action) == second.step(action)
        np.testing.assert_array_equal(first._env.data.qpos, second._env.data.qpos)


def test_the_dense_reward_is_upstream_s() -> None:
    sparse, dense = simulator("reach"), simulator("reach", task_reward="dense")
    start = StartState(task_id=0, trial_id=0)
    assert sparse.reset(start) == dense.reset(start)
    action = np.zeros(4, dtype=np.float32)
    assert sparse.step(action).reward == 0.0
    assert 0.0 < dense.step(action).reward < 10.0


def photograph(side: str, size: int, tasks: list[str], out: Path) -> dict[str, np.ndarray]:
    environment = worker_environment(metaworld_benchmark("MetaWorld-MT50"), os.environ, worker=0, num_workers=1)
    command = [sys.executable, str(RECORDER), side, str(size), str(out), *tasks]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with np.load(out) as log:
        return dict(log)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["upstream", pytest.param("corner2", marks=pytest.mark.thorough)])
def test_pictures_are_upstream_s_and_corner4_is_the_moved_corner2(other: str, tmp_path: Path) -> None:
    tasks = ["reach", "soccer"]
    sides = {side: photograph(side, 480, tasks, tmp_path / f"{side}.npz") for side in ("adapter", other)}
    for task in tasks:
        full = sides["adapter"][task]
        assert full.shape == (2, 480, 480, 3)
        assert full.dtype == np.uint8
        np.testing.assert_array_equal(full, sides[other][task])
        assert (full[0] != full[1]).any()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("size", "tasks"), [(64, [*TASKS]), (480, ["pick-place", "drawer-open", "assembly", "hammer"])]
)
def test_fast_pictures_are_those_of_all_triangles(size: int, tasks: list[str], tmp_path: Path) -> None:
    fast, whole = (photograph(side, size, tasks, tmp_path / f"{side}.npz") for side in ("fast", "whole"))
    for task in tasks:
        np.testing.assert_array_equal(fast[task], whole[task])
        assert (fast[task][0] != fast[task][1]).any()
