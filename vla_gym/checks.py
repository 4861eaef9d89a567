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

from vla_gym.errors import BadValue
from vla_gym.make import make_vec
from vla_gym.registry import find_benchmark
from vla_gym.specs import Benchmark
from vla_gym.vector.vector_env import Observation, VLAVectorEnv

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


def require(condition: bool | np.bool_ | np.ndarray, promise: str) -> None:
    """Raise `AssertionError` unless the condition, a bool or an array of bools, holds everywhere."""
    if not np.all(condition):
        raise AssertionError(f"promise broken: {promise}")


def check_observation(envs: VLAVectorEnv, obs: Observation, infos: Mapping[str, Any]) -> None:
    """The observation lies in its space, its texts are the tasks', `infos` is complete."""
    require(obs in envs.observation_space, "the observation is in observation_space")
    for env, task_id in enumerate(infos["task_id"].tolist()):
        text = envs.benchmark.tasks[task_id].instruction
        require(obs["instruction"][env] == text, f"slot {env} has its task's instruction: {text!r}")
    require(all(image.std() > 0 for image in obs["image"]), "pictures show something")
    for key, dtype in INFO_DTYPES.items():
        value, mask_N = infos.get(key), infos.get(f"_{key}")
        require(isinstance(value, np.ndarray) and value.dtype == dtype, f"infos['{key}'] is {dtype.__name__}")
        require(isinstance(mask_N, np.ndarray) and mask_N.dtype == np.bool_, f"infos['_{key}'] is a mask")


def has_episode(infos: Mapping[str, Any]) -> np.ndarray:
    """Bool `[N]`: `infos` has statistics of an episode."""
    mask_N = infos.get("_episode")
    return np.zeros(len(infos["_success"]), dtype=np.bool_) if mask_N is None else np.asarray(mask_N)


def as_bytes(obs: Observation) -> dict[str, object]:
    """Arrays as bytes, so that observations can be compared with ==."""
    return {key: value.tobytes() if isinstance(value, np.ndarray) else value for key, value in obs.items()}


def fresh(old: Observation, new: Observation) -> bool:
    """Whether no array of `new` shares memory with one of `old`."""
    return not any(np.shares_memory(old[key], new[key]) for key in old if isinstance(old[key], np.ndarray))


def idle_actions(envs: VLAVectorEnv) -> np.ndarray:
    """Zeros, float32 `[N, K, A]`."""
    return np.zeros((envs.num_envs, *envs.single_action_space.shape), dtype=np.float32)


Outcome = tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


def check_autoreset(envs: VLAVectorEnv) -> None:
    """After an episode's end each mode does exactly what Gymnasium (and, for DISABLED, this package) says.

    `envs` is one group, so doing nothing ends all its episodes together.
    """
    for mode, check in (
        (AutoresetMode.NEXT_STEP, _check_next_step),
        (AutoresetMode.SAME_STEP, _check_same_step),
        (AutoresetMode.DISABLED, _check_disabled),
    ):
        envs.metadata["autoreset_mode"] = mode
        envs.reset(seed=7)
        outcome = _to_the_end(envs)
        require(outcome[2] | outcome[3], "slots of one group that do the same end together")
        require(~(outcome[2] & outcome[3]), "terminated and truncated exclude each other")
        check(envs, outcome)


def check_sb3(envs: VLAVectorEnv) -> None:
    """`as_sb3()` gives what Stable-Baselines3 expects at an episode's end and on the way there."""
    view = envs.as_sb3()
    view.seed(8)
    obs: Any = view.reset()
    single = view.observation_space
    steps_N, reward_N = np.zeros(envs.num_envs), np.zeros(envs.num_envs)
    success_N = np.zeros(envs.num_envs, dtype=np.bool_)
    done_N = np.zeros(envs.num_envs, dtype=np.bool_)
    while not done_N.any():
        require(all(_row(obs, env) in single for env in range(envs.num_envs)), "as_sb3: observations fit")
        before = obs
        obs, rewards, done_N, infos = view.step(idle_actions(envs))
        require(fresh(before, obs), "as_sb3: step returns fresh arrays")
        require(rewards.dtype == np.float32 and done_N.dtype == np.bool_, "as_sb3: dtypes of rewards and dones")
        reward_N += rewards
        steps_N += [info["executed"] for info in infos]
        success_N |= [info["success"] for info in infos]
        for info, done in zip(infos, done_N, strict=True):
            cut_off = info.get("TimeLimit.truncated")
            require(isinstance(cut_off, bool), "as_sb3: TimeLimit.truncated on every step")
            last_keys = {"terminal_observation", "is_success", "episode"}
            wrong = sorted((last_keys & set(info)) ^ (last_keys if done else set()))
            require(not wrong, f"as_sb3: the last decision, and only that, has {wrong}")
    for env in np.flatnonzero(done_N).tolist():
        info = infos[env]
        last, stats = info["terminal_observation"], info["episode"]
        own = last in single and not np.shares_memory(last["image"], obs["image"])
        require(own, "as_sb3: terminal_observation")
        require(stats["l"] == steps_N[env], "as_sb3: episode['l'] counts simulator steps")
        require(np.isclose(stats["r"], reward_N[env], atol=1e-4), "as_sb3: episode['r'] is the sum of rewards")
        require(info["is_success"] == success_N[env], "as_sb3: is_success is success at any step")
        horizon = envs.benchmark.tasks[info["task_id"]].horizon
        cut_off = info["TimeLimit.truncated"]
        require(not cut_off or stats["l"] == horizon, "as_sb3: TimeLimit.truncated at the horizon")
        require(view.reset_infos[env]["executed"] == 0, "as_sb3: reset_infos are of the next episode")


def check_grid(envs: VLAVectorEnv) -> None:
    """One environment (mode DISABLED) on a grid begins in every start state once, then is idle."""
    tasks = envs.benchmark.tasks
    starts = [(task_id, trial) for task_id, task in enumerate(tasks) for trial in range(task.num_trials)]
    obs, infos = envs.reset(seed=9)
    begun = []
    while not envs.idle.all():
        check_observation(envs, obs, infos)
        begun.append((int(infos["task_id"][0]), int(infos["trial_id"][0])))
        require(len(begun) <= len(starts), "a grid ends")
        obs, infos = envs.reset(options={"reset_mask": np.ones(1, dtype=np.bool_)})
    require(begun == starts, f"a grid begins in each start state once, in order: {begun}")
    obs, infos = envs.reset()
    first = (int(infos["task_id"][0]), int(infos["trial_id"][0]))
    require(first == starts[0], "reset() starts a grid anew")


def _check_next_step(envs: VLAVectorEnv, outcome: Outcome) -> None:
    require("final_obs" not in outcome[4], "NEXT_STEP: the last observation comes as the observation")
    obs, reward_N, terminated_N, truncated_N, infos = envs.step(idle_actions(envs))
    nothing = not reward_N.any() and not infos["executed"].any()
    require(nothing, "NEXT_STEP: the step after the end only resets")
    require(~(terminated_N | truncated_N), "NEXT_STEP: its flags are down")
    require(~has_episode(infos), "NEXT_STEP: an episode's statistics come once")
    check_observation(envs, obs, infos)
    require(envs.step(idle_actions(envs))[4]["executed"] > 0, "NEXT_STEP: the step after that runs")


def _check_same_step(envs: VLAVectorEnv, outcome: Outcome) -> None:
    obs, _, terminated_N, truncated_N, infos = outcome
    ended_N = terminated_N | truncated_N
    for key in ("_final_obs", "_final_info"):
        require(infos[key] == ended_N, f"SAME_STEP: `{key}` is the mask of ended slots")
    final_info = infos["final_info"]
    require(has_episode(final_info), "SAME_STEP: `episode` is in final_info")
    require(~has_episode(infos), "SAME_STEP: and only there")
    require(not infos["executed"].any(), "SAME_STEP: the new episode has run nothing")
    for env, last in enumerate(infos["final_obs"]):
        require(last in envs.single_observation_space, "SAME_STEP: final_obs is an observation")
        shared = np.shares_memory(last["image"], obs["image"])
        require(not shared, "SAME_STEP: final_obs is an array of its own")
        text = envs.benchmark.tasks[int(final_info["task_id"][env])].instruction
        require(last["instruction"] == text, "SAME_STEP: final_obs has the ended task's instruction")
    check_observation(envs, obs, infos)
    require(envs.step(idle_actions(envs))[4]["executed"] > 0, "SAME_STEP: the next step runs")


def _check_disabled(envs: VLAVectorEnv, outcome: Outcome) -> None:
    before, _, terminated_N, truncated_N, _ = outcome
    obs, reward_N, still_terminated_N, still_truncated_N, infos = envs.step(idle_actions(envs))
    nothing = not reward_N.any() and not infos["executed"].any()
    require(nothing, "DISABLED: a finished slot costs and pays nothing")
    solved = infos["success"].any()
    require(not solved, "DISABLED: a finished slot was solved in its last decision, not in later ones")
    held_N = (terminated_N == still_terminated_N) & (truncated_N == still_truncated_N)
    same = as_bytes(before) == as_bytes(obs)
    require(held_N.all() and same, "DISABLED: its flags and observation stay")
    first_N = np.arange(envs.num_envs) == 0
    after, infos = envs.reset(options={"reset_mask": first_N})
    check_observation(envs, after, infos)
    others = range(1, envs.num_envs)
    same = all(as_bytes(_row(after, env)) == as_bytes(_row(obs, env)) for env in others)
    require(same, "DISABLED: a reset leaves the slots outside its mask alone")
    executed_N = envs.step(idle_actions(envs))[4]["executed"]
    require((executed_N > 0) == first_N, "DISABLED: only the slots of the mask run on")


def _to_the_end(envs: VLAVectorEnv) -> Outcome:
    """Do nothing until an episode ends; every step's observation is checked."""
    longest = max(task.horizon for task in envs.benchmark.tasks)
    for _ in range(longest // envs.chunk + 1):
        outcome = envs.step(idle_actions(envs))
        check_observation(envs, outcome[0], outcome[4])
        if (outcome[2] | outcome[3]).any():
            return outcome
    raise AssertionError("promise broken: an episode ends at its horizon at the latest")


def _row(obs: Observation, env: int) -> dict[str, Any]:
    return {key: value[env] for key, value in obs.items()}
