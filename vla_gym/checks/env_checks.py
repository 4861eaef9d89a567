"""The contract of an environment as one reusable test: `check_vla_env("Toy-Reach")`.

Gymnasium's `check_env` knows single environments only. This one makes the vector environment, drives it,
and raises an `AssertionError` that names the promise which does not hold.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from vla_gym.checks.promises import (
    as_bytes,
    check_observation,
    fresh,
    has_episode,
    idle_actions,
    require,
)
from vla_gym.checks.sequences import check_autoreset, check_grid, check_sb3
from vla_gym.errors import BadValue
from vla_gym.make import make_vec
from vla_gym.registry import find_benchmark
from vla_gym.specs import Benchmark
from vla_gym.vector.vector_env import VLAVectorEnv

KEYS = {"image", "wrist_image", "state", "privileged", "instruction"}
"""Keys that an observation may have; see `vla_gym.observation`."""


def check_vla_env(
    env_id: str | Benchmark,
    *,
    chunk: int = 4,
    num_decisions: int = 3,
    to_the_end: bool = True,
    **options: Any,
) -> None:
    """Make two grouped environments of `env_id`, drive them, and check every promise of the contract.

    Args:
        env_id: id or `Benchmark`.
        chunk: K, for all but the time limit's check.
        num_decisions: decisions driven with random actions.
        to_the_end: also run one episode to its time limit (in one chunk).
        options: further arguments of `make_vec`; the autoreset mode is the check's own.

    Raises `AssertionError` with the broken promise.
    """
    whole, own = _take_options(env_id, options)
    # One decision more than is driven, and that one cut short.
    short = _limited(whole, horizon=chunk * (num_decisions + 1) - 1)
    envs = make_vec(short, 2, chunk=chunk, group_size=2, autoreset_mode="next_step", **own)
    try:
        check_spaces(envs)
        check_reset(envs)
        check_episode(envs, num_decisions)
        check_repeatable(envs, num_decisions)
        check_bad_actions(envs)
        check_replay(envs, num_decisions)
        check_autoreset(envs)
        check_sb3(envs)
    finally:
        pids = envs.worker_pids
        envs.close()
    require(not any(map(_alive, pids)), "close() leaves no worker process behind")
    grid = _limited(whole, num_tasks=2, num_trials=2)
    longest = max(task.horizon for task in grid.tasks)
    grid_options: dict[str, Any] = {"chunk": longest + 1, "schedule": "grid", "autoreset_mode": "disabled"}
    envs = make_vec(grid, 1, **grid_options, **own)
    try:
        check_grid(envs)
        if to_the_end:
            check_time_limit(envs)
    finally:
        envs.close()


def _take_options(env_id: str | Benchmark, options: Mapping[str, Any]) -> tuple[Benchmark, dict[str, Any]]:
    """The benchmark, and the options left for `make_vec`."""
    known = inspect.signature(make_vec).parameters
    own = {name: value for name, value in options.items() if name in known}
    if isinstance(env_id, Benchmark):
        return env_id, dict(options)
    family = {name: value for name, value in options.items() if name not in known}
    return find_benchmark(env_id, split=own.pop("split", "train"), **family), own


def _limited(
    benchmark: Benchmark,
    *,
    horizon: int | None = None,
    num_tasks: int | None = None,
    num_trials: int | None = None,
) -> Benchmark:
    """The benchmark with at most so many steps, tasks and trials."""
    tasks = (
        dataclasses.replace(
            task,
            horizon=min(task.horizon, horizon or task.horizon),
            num_trials=min(task.num_trials, num_trials or task.num_trials),
        )
        for task in benchmark.tasks[:num_tasks]
    )
    return dataclasses.replace(benchmark, tasks=tuple(tasks))


def check_spaces(envs: VLAVectorEnv) -> None:
    """Spaces and metadata are declared as Gymnasium wants them."""
    mode = envs.metadata.get("autoreset_mode")
    require(isinstance(mode, AutoresetMode), "metadata['autoreset_mode'] is a member of AutoresetMode")
    keys = set(envs.single_observation_space.spaces)
    require({"image", "instruction"} <= keys, "the observation has `image` and `instruction`")
    require(keys <= KEYS, f"no other keys than known, got {keys}")
    space, length = envs.single_observation_space.spaces.get("privileged"), envs.benchmark.privileged_dim
    fits = space is not None and space.dtype == np.float64 and space.shape == (length,)
    unasked = "`privileged` only when asked for"
    promise = f"the observation has `privileged` float64 [{length}]" if length else unasked
    require(fits if length else space is None, promise)
    shape = envs.single_action_space.shape
    require(shape == (envs.chunk, envs.benchmark.action_dim), "the action space is [chunk, action_dim]")
    require(envs.single_action_space.low == -1, "actions are in [-1, 1]")
    require(envs.single_action_space.high == 1, "actions are in [-1, 1]")
    require(all(task.instruction for task in envs.benchmark.tasks), "every task has an instruction")


def check_reset(envs: VLAVectorEnv) -> None:
    """Reset gives a whole observation, right texts, and one start state per group."""
    first, infos = envs.reset(seed=1)
    check_observation(envs, first, infos)
    _check_groups(envs, infos)
    require(not infos["executed"].any(), "a reset executes no steps")
    second, infos = envs.reset()
    check_observation(envs, second, infos)
    require(fresh(first, second), "reset returns fresh arrays")


def check_episode(envs: VLAVectorEnv, num_decisions: int) -> None:
    """Each decision's numbers agree with each other."""
    obs, _ = envs.reset(seed=2)
    rng = np.random.default_rng(0)
    finished_N = envs.finished
    for _ in range(num_decisions):
        kept = {key: value.copy() for key, value in obs.items() if isinstance(value, np.ndarray)}
        before = obs
        obs, reward_N, terminated_N, truncated_N, infos = envs.step(_actions(envs, rng))
        check_observation(envs, obs, infos)
        require(all(np.array_equal(kept[key], before[key]) for key in kept), "step leaves old arrays alone")
        require(fresh(before, obs), "step returns fresh arrays")
        require(reward_N.dtype == np.float64, "reward is float64")
        sums_N = infos["step_rewards"].sum(axis=1)
        require(np.allclose(reward_N, sums_N, atol=1e-5), "reward is the sum of step_rewards")
        ended_N = terminated_N | truncated_N
        full_N = infos["executed"] == np.where(finished_N, 0, envs.chunk)
        require(full_N | ended_N, "a chunk is cut short only by the episode's end")
        require(infos["executed"] <= envs.chunk, "at most `chunk` steps are executed")
        require(has_episode(infos) == ended_N, "`episode` comes on the last decision, and only there")
        finished_N = envs.finished


def check_repeatable(envs: VLAVectorEnv, num_decisions: int) -> None:
    """The same seed and actions give the same bytes."""
    runs = []
    for _ in range(2):
        obs, infos = envs.reset(seed=3)
        rng = np.random.default_rng(1)
        begin = [as_bytes(obs), infos["start_state"].tolist()]
        runs.append([*begin, *(_outcome(envs, _actions(envs, rng)) for _ in range(num_decisions))])
    require(runs[0] == runs[1], "the same seed and actions give the same observations, rewards and flags")


def check_bad_actions(envs: VLAVectorEnv) -> None:
    """NaN and wrong shapes are refused, and refusing harms nothing."""
    envs.reset(seed=4)
    right = idle_actions(envs)
    not_a_number = right.copy()
    not_a_number[0, 0, 0] = np.nan
    for actions, what in ((not_a_number, "NaN"), (right[:, :, :-1], "a wrong shape")):
        try:
            envs.step(actions)
        except BadValue:
            continue
        raise AssertionError(f"promise broken: actions with {what} raise BadValue")
    envs.step(right)


def check_replay(envs: VLAVectorEnv, num_decisions: int) -> None:
    """A saved state, loaded, continues with the same bytes."""
    envs.reset(seed=5)
    rng = np.random.default_rng(2)
    before = [_actions(envs, rng) for _ in range(num_decisions)]
    after = [_actions(envs, rng) for _ in range(num_decisions)]
    for action in before:
        obs, *_ = envs.step(action)
    state = envs.state_dict()
    expected = [as_bytes(obs), *(_outcome(envs, action) for action in after)]
    obs, _ = envs.load_state_dict(state)
    found = [as_bytes(obs), *(_outcome(envs, action) for action in after)]
    require(expected == found, "a loaded state continues bit for bit")


def check_time_limit(envs: VLAVectorEnv) -> None:
    """An episode without motion ends exactly at the task's horizon, truncated.

    `envs` is one environment with autoreset DISABLED and chunks longer than any horizon.
    """
    _, infos = envs.reset(seed=6)
    horizon = envs.benchmark.tasks[int(infos["task_id"][0])].horizon
    _, _, terminated_N, truncated_N, infos = envs.step(idle_actions(envs))
    if not terminated_N[0]:
        require(truncated_N[0], "the time limit truncates")
        require(infos["executed"][0] == horizon, "the horizon counts simulator steps")
    require(infos["episode"]["length"][0] == infos["executed"][0], "length is in steps")


def _check_groups(envs: VLAVectorEnv, infos: Mapping[str, Any]) -> None:
    size = envs.config.group_size
    for key in ("start_state", "task_id", "trial_id"):
        groups = infos[key].reshape(-1, size)
        require(groups == groups[:, :1], f"the slots of a group share their {key}")


def _actions(envs: VLAVectorEnv, rng: np.random.Generator) -> np.ndarray:
    shape = (envs.num_envs, *envs.single_action_space.shape)
    return rng.uniform(-1.0, 1.0, shape).astype(np.float32)


def _outcome(envs: VLAVectorEnv, action_NKA: np.ndarray) -> tuple[object, ...]:
    obs, reward_N, terminated_N, truncated_N, infos = envs.step(action_NKA)
    flags = (terminated_N.tolist(), truncated_N.tolist(), infos["start_state"].tolist())
    return (as_bytes(obs), reward_N.tolist(), flags)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
