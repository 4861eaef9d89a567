"""The contract of a benchmark as one reusable test: `check_vla_env("Toy-Reach")`.

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

from vla_gym.make import make_vec
from vla_gym.registry import find_benchmark
from vla_gym.specs import Benchmark
from vla_gym.vector.step import Observation
from vla_gym.vector.vector_env import VLAVectorEnv


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
    known = inspect.signature(make_vec).parameters
    own = {name: value for name, value in options.items() if name in known}
    if isinstance(env_id, str):
        family = {name: value for name, value in options.items() if name not in known}
        env_id = find_benchmark(env_id, split=own.pop("split", "train"), **family)
    # One decision more than is driven, and that one cut short.
    short = _limited(env_id, horizon=chunk * (num_decisions + 1) - 1)
    envs = make_vec(short, 2, chunk=chunk, group_size=2, autoreset_mode="next_step", **own)
    try:
        check_reset(envs)
        check_repeatable(envs, num_decisions)
        check_replay(envs, num_decisions)
    finally:
        pids = envs.worker_pids
        envs.close()
    require(not any(map(_alive, pids)), "close() leaves no worker process behind")
    if to_the_end:
        longest = max(task.horizon for task in env_id.tasks)
        envs = make_vec(env_id, 1, chunk=longest + 1, autoreset_mode="disabled", **own)
        try:
            check_time_limit(envs)
        finally:
            envs.close()


def check_reset(envs: VLAVectorEnv) -> None:
    """Check that a reset gives a whole observation, right texts, and one start state per group."""
    obs, infos = envs.reset(seed=1)
    check_observation(envs, obs, infos)
    for key in ("start_state", "task_id", "trial_id"):
        groups = infos[key].reshape(-1, envs.config.group_size)
        require(groups == groups[:, :1], f"the slots of a group share their {key}")


def check_repeatable(envs: VLAVectorEnv, num_decisions: int) -> None:
    """Check that the same seed and actions give the same bytes."""
    runs = []
    for _ in range(2):
        obs, infos = envs.reset(seed=3)
        rng = np.random.default_rng(1)
        begin = [_as_bytes(obs), infos["start_state"].tolist()]
        runs.append([*begin, *(_outcome(envs, _actions(envs, rng)) for _ in range(num_decisions))])
    require(runs[0] == runs[1], "the same seed and actions give the same observations, rewards and flags")


def check_replay(envs: VLAVectorEnv, num_decisions: int) -> None:
    """Check that a saved state, loaded, continues with the same bytes."""
    envs.reset(seed=5)
    rng = np.random.default_rng(2)
    before, after = ([_actions(envs, rng) for _ in range(num_decisions)] for _ in range(2))
    for action in before:
        obs, *_ = envs.step(action)
    state = envs.state_dict()
    expected = [_as_bytes(obs), *(_outcome(envs, action) for action in after)]
    obs, _ = envs.load_state_dict(state)
    found = [_as_bytes(obs), *(_outcome(envs, action) for action in after)]
    require(expected == found, "a loaded state continues bit for bit")


def check_time_limit(envs: VLAVectorEnv) -> None:
    """Check that an episode without motion ends exactly at the task's horizon, truncated.

    `envs` is one environment with autoreset DISABLED and chunks longer than any horizon.
    """
    _, infos = envs.reset(seed=6)
    horizon = envs.benchmark.tasks[int(infos["task_id"][0])].horizon
    still = np.zeros((1, *envs.single_action_space.shape), dtype=np.float32)
    _, _, terminated_N, truncated_N, infos = envs.step(still)
    if not terminated_N[0]:
        require(truncated_N[0], "the time limit truncates")
        require(infos["executed"][0] == horizon, "the horizon counts simulator steps")
    require(infos["episode"]["length"][0] == infos["executed"][0], "length is in steps")


def check_observation(envs: VLAVectorEnv, obs: Observation, infos: Mapping[str, Any]) -> None:
    """Check that the observation lies in its space and its texts are the tasks'."""
    require(obs in envs.observation_space, "the observation is in observation_space")
    for env, task_id in enumerate(infos["task_id"].tolist()):
        text = envs.benchmark.tasks[task_id].instruction
        require(obs["instruction"][env] == text, f"slot {env} has its task's instruction: {text!r}")
    require(all(image.std() > 0 for image in obs["image"]), "images show something")


def require(condition: bool | np.bool_ | np.ndarray, promise: str) -> None:
    """Raise `AssertionError` unless the condition, a bool or an array of bools, holds everywhere."""
    if not np.all(condition):
        raise AssertionError(f"promise broken: {promise}")


def _limited(benchmark: Benchmark, *, horizon: int) -> Benchmark:
    tasks = (dataclasses.replace(task, horizon=min(task.horizon, horizon)) for task in benchmark.tasks)
    return dataclasses.replace(benchmark, tasks=tuple(tasks))


def _as_bytes(obs: Observation) -> dict[str, object]:
    return {key: value.tobytes() if isinstance(value, np.ndarray) else value for key, value in obs.items()}


def _actions(envs: VLAVectorEnv, rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(-1.0, 1.0, (envs.num_envs, *envs.single_action_space.shape)).astype(np.float32)


def _outcome(envs: VLAVectorEnv, action_NKA: np.ndarray) -> tuple[object, ...]:
    obs, reward_N, terminated_N, truncated_N, infos = envs.step(action_NKA)
    check_observation(envs, obs, infos)
    flags = (terminated_N.tolist(), truncated_N.tolist(), infos["start_state"].tolist())
    return (_as_bytes(obs), reward_N.tolist(), flags)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
