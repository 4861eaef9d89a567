"""Checks of the contract over several steps: autoreset modes, Stable-Baselines3, the grid."""

from __future__ import annotations

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
from vla_gym.vector.vector_env import Observation, VLAVectorEnv

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
