"""The contract of an environment as one reusable test: `check_vla_env("Toy-Reach")`.

Gymnasium's `check_env` knows single environments only. This one makes the vector environment, drives it,
and raises an `AssertionError` that names the promise which does not hold.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from vla_gym.errors import BadValue
from vla_gym.make import make_vec
from vla_gym.specs import Benchmark
from vla_gym.vector import Observation, VLAVectorEnv

INFO_DTYPES: dict[str, type] = {
    "success": np.bool_,
    "task_id": np.int64,
    "trial_id": np.int64,
    "executed": np.int64,
    "start_state": np.object_,
    "step_rewards": np.float32,
    "idle": np.bool_,
    "lost": np.bool_,
}
"""Keys that `infos` always has; each comes with its `_key` mask."""


def check_vla_env(
    env_id: str | Benchmark,
    *,
    chunk: int = 4,
    num_decisions: int = 3,
    to_the_end: bool = True,
    **options: Any,
) -> None:
    """Make two grouped slots of `env_id`, drive them, and check every promise of the contract.

    Args:
        env_id: id or `Benchmark`.
        chunk: K, for all but the time limit's check.
        num_decisions: decisions driven with random actions.
        to_the_end: also run one episode to its time limit (in one chunk).
        options: further arguments of `make_vec`; the autoreset mode is the check's own.

    Raises `AssertionError` with the broken promise.
    """
    envs = make_vec(env_id, 2, chunk=chunk, group_size=2, autoreset_mode="next_step", **options)
    try:
        check_spaces(envs)
        check_reset(envs)
        check_episode(envs, num_decisions)
        check_repeatable(envs, num_decisions)
        check_bad_actions(envs)
        check_replay(envs, num_decisions)
    finally:
        pids = envs.worker_pids
        envs.close()
    require(not any(map(_alive, pids)), "close() leaves no worker process behind")
    if to_the_end:
        check_time_limit(env_id, envs.benchmark, **options)


def check_spaces(envs: VLAVectorEnv) -> None:
    """Spaces and metadata are declared as Gymnasium wants them."""
    mode = envs.metadata.get("autoreset_mode")
    require(isinstance(mode, AutoresetMode), "metadata['autoreset_mode'] is a member of AutoresetMode")
    keys = set(envs.single_observation_space.spaces)
    require({"image", "instruction"} <= keys, "the observation has `image` and `instruction`")
    require(keys <= {"image", "wrist_image", "state", "instruction"}, f"no other keys than known, got {keys}")
    shape = envs.single_action_space.shape
    require(shape == (envs.chunk, envs.benchmark.action_dim), "the action space is [chunk, action_dim]")
    require(
        bool((envs.single_action_space.low == -1).all() and (envs.single_action_space.high == 1).all()),
        "actions are in [-1, 1]",
    )
    require(all(task.instruction for task in envs.benchmark.tasks), "every task has an instruction")


def check_reset(envs: VLAVectorEnv) -> None:
    """Reset gives a whole observation, right texts, and one start state per group."""
    first, infos = envs.reset(seed=1)
    check_observation(envs, first, infos)
    _check_groups(envs, infos)
    require(not infos["executed"].any(), "a reset executes no steps")
    second, infos = envs.reset()
    check_observation(envs, second, infos)
    require(_fresh(first, second), "reset returns fresh arrays")


def check_observation(envs: VLAVectorEnv, obs: Observation, infos: Mapping[str, Any]) -> None:
    """The observation lies in its space, its texts are the tasks', `infos` is complete."""
    require(obs in envs.observation_space, "the observation is in observation_space")
    for slot, task_id in enumerate(infos["task_id"].tolist()):
        text = envs.benchmark.tasks[task_id].instruction
        require(obs["instruction"][slot] == text, f"slot {slot} is told its task: {text!r}")
    require(all(image.std() > 0 for image in obs["image"]), "pictures show something")
    for key, dtype in INFO_DTYPES.items():
        value = infos.get(key)
        require(isinstance(value, np.ndarray) and value.dtype == dtype, f"infos['{key}'] is {dtype.__name__}")
        mask_N = infos.get(f"_{key}")
        require(isinstance(mask_N, np.ndarray) and mask_N.dtype == np.bool_, f"infos['_{key}'] is a mask")


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
        require(_fresh(before, obs), "step returns fresh arrays")
        require(reward_N.dtype == np.float64, "reward is float64")
        sums_N = infos["step_rewards"].sum(axis=1)
        require(np.allclose(reward_N, sums_N, atol=1e-5), "reward is the sum of step_rewards")
        ended_N = terminated_N | truncated_N
        full_N = infos["executed"] == np.where(finished_N, 0, envs.chunk)
        require(bool((full_N | ended_N).all()), "a chunk is cut short only by the episode's end")
        require(bool((infos["executed"] <= envs.chunk).all()), "at most `chunk` steps are executed")
        told_N = infos["_episode"] if "_episode" in infos else np.zeros(envs.num_envs, dtype=np.bool_)
        require(np.array_equal(told_N, ended_N), "`episode` is told on the last decision, and only there")
        finished_N = envs.finished


def check_repeatable(envs: VLAVectorEnv, num_decisions: int) -> None:
    """The same seed and actions give the same bytes."""
    runs = []
    for _ in range(2):
        obs, infos = envs.reset(seed=3)
        rng = np.random.default_rng(1)
        trace: list[Any] = [_bytes(obs), infos["start_state"].tolist()]
        for _ in range(num_decisions):
            obs, reward_N, terminated_N, truncated_N, _ = envs.step(_actions(envs, rng))
            trace += [_bytes(obs), reward_N.tolist(), terminated_N.tolist(), truncated_N.tolist()]
        runs.append(trace)
    require(runs[0] == runs[1], "the same seed and actions give the same observations, rewards and flags")


def check_bad_actions(envs: VLAVectorEnv) -> None:
    """NaN and wrong shapes are refused, and refusing harms nothing."""
    envs.reset(seed=4)
    right = np.zeros((envs.num_envs, *envs.single_action_space.shape), dtype=np.float32)
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
    expected = [_bytes(obs), *(_outcome(envs, action) for action in after)]
    obs, _ = envs.load_state_dict(state)
    found = [_bytes(obs), *(_outcome(envs, action) for action in after)]
    require(expected == found, "a loaded state continues bit for bit")


def check_time_limit(env_id: str | Benchmark, benchmark: Benchmark, **options: Any) -> None:
    """An episode in which nothing is done ends exactly at the task's horizon, truncated.

    `env_id` and `options` make the environment, whose `Benchmark` is `benchmark`.
    """
    chunk = max(task.horizon for task in benchmark.tasks) + 1
    envs = make_vec(env_id, 1, chunk=chunk, autoreset_mode="disabled", **options)
    try:
        _, infos = envs.reset(seed=6)
        horizon = benchmark.tasks[int(infos["task_id"][0])].horizon
        idle = np.zeros((1, chunk, benchmark.action_dim), dtype=np.float32)
        _, _, terminated_N, truncated_N, infos = envs.step(idle)
        if not terminated_N[0]:
            require(bool(truncated_N[0]), "the time limit truncates")
            require(int(infos["executed"][0]) == horizon, "the horizon counts simulator steps")
        require(int(infos["episode"]["length"][0]) == int(infos["executed"][0]), "length is in steps")
        _, reward_N, *_, infos = envs.step(idle)
        require(reward_N[0] == 0 and infos["executed"][0] == 0, "a held slot costs and pays nothing")
    finally:
        envs.close()


def require(holds: bool, promise: str) -> None:
    """Raise `AssertionError` unless the promise holds."""
    if not holds:
        raise AssertionError(f"promise broken: {promise}")


def _check_groups(envs: VLAVectorEnv, infos: Mapping[str, Any]) -> None:
    size = envs.config.group_size
    for key in ("start_state", "task_id", "trial_id"):
        groups = infos[key].reshape(-1, size)
        require(bool((groups == groups[:, :1]).all()), f"the slots of a group share their {key}")


def _actions(envs: VLAVectorEnv, rng: np.random.Generator) -> np.ndarray:
    shape = (envs.num_envs, *envs.single_action_space.shape)
    return rng.uniform(-1.0, 1.0, shape).astype(np.float32)


def _outcome(envs: VLAVectorEnv, action_NKA: np.ndarray) -> tuple[object, ...]:
    obs, reward_N, terminated_N, truncated_N, infos = envs.step(action_NKA)
    flags = (terminated_N.tolist(), truncated_N.tolist(), infos["start_state"].tolist())
    return (_bytes(obs), reward_N.tolist(), flags)


def _bytes(obs: Observation) -> dict[str, object]:
    return {key: value.tobytes() if isinstance(value, np.ndarray) else value for key, value in obs.items()}


def _fresh(old: Observation, new: Observation) -> bool:
    return not any(np.shares_memory(old[key], new[key]) for key in old if isinstance(old[key], np.ndarray))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
