"""The part of the contract's test that is about what follows what: autoreset modes, Stable-Baselines3, the grid."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from vla_gym.checks.promises import check_observation, fresh, has_episode, require, same_bytes
from vla_gym.vector.vector_env import Observation, VLAVectorEnv

Outcome = tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


def check_autoreset(envs: VLAVectorEnv) -> None:
    """After an episode's end each mode does exactly what Gymnasium (and, for DISABLED, this package) says.

    The slots of `envs` form one group, so doing nothing ends all of them together.
    """
    for mode, check in (
        (AutoresetMode.NEXT_STEP, _check_next_step),
        (AutoresetMode.SAME_STEP, _check_same_step),
        (AutoresetMode.DISABLED, _check_disabled),
    ):
        envs.metadata["autoreset_mode"] = mode
        envs.reset(seed=7)
        outcome = _to_the_end(envs)
        require(bool((outcome[2] | outcome[3]).all()), "slots of one group that do the same end together")
        require(not bool((outcome[2] & outcome[3]).any()), "terminated and truncated exclude each other")
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
        require(all(_row(obs, slot) in single for slot in range(envs.num_envs)), "as_sb3: observations fit")
        before = obs
        obs, rewards, done_N, infos = view.step(_idle(envs))
        require(fresh(before, obs), "as_sb3: step returns fresh arrays")
        require(
            rewards.dtype == np.float32 and done_N.dtype == np.bool_, "as_sb3: dtypes of rewards and dones"
        )
        reward_N += rewards
        steps_N += [info["executed"] for info in infos]
        success_N |= [info["success"] for info in infos]
        for info, done in zip(infos, done_N, strict=True):
            require(
                isinstance(info.get("TimeLimit.truncated"), bool), "as_sb3: TimeLimit.truncated on every step"
            )
            told = {"terminal_observation", "is_success", "episode"} & set(info)
            want = {"terminal_observation", "is_success", "episode"} if done else set()
            require(told == want, f"as_sb3: the last decision, and only that, tells {sorted(want ^ told)}")
    for slot in np.flatnonzero(done_N).tolist():
        info = infos[slot]
        last = info["terminal_observation"]
        require(
            last in single and not np.shares_memory(last["image"], obs["image"]),
            "as_sb3: terminal_observation",
        )
        stats = info["episode"]
        require(stats["l"] == steps_N[slot], "as_sb3: episode['l'] counts simulator steps")
        require(
            bool(np.isclose(stats["r"], reward_N[slot], atol=1e-4)),
            "as_sb3: episode['r'] is the sum of rewards",
        )
        require(
            bool(info["is_success"]) == bool(success_N[slot]), "as_sb3: is_success is success at any step"
        )
        horizon = envs.benchmark.tasks[info["task_id"]].horizon
        require(
            not info["TimeLimit.truncated"] or stats["l"] == horizon,
            "as_sb3: TimeLimit.truncated at the horizon",
        )
        require(view.reset_infos[slot]["executed"] == 0, "as_sb3: reset_infos are of the next episode")


def check_grid(envs: VLAVectorEnv) -> None:
    """One slot (mode DISABLED) of a grid begins in every cell once, then is idle."""
    cells = [
        (task, trial) for task, one in enumerate(envs.benchmark.tasks) for trial in range(one.num_trials)
    ]
    obs, infos = envs.reset(seed=9)
    seen = []
    while not envs.idle.all():
        check_observation(envs, obs, infos)
        seen.append((int(infos["task_id"][0]), int(infos["trial_id"][0])))
        require(len(seen) <= len(cells), "a grid ends")
        obs, infos = envs.reset(options={"reset_mask": np.ones(1, dtype=np.bool_)})
    require(seen == cells, f"a grid begins in each cell once, in order: {seen}")
    obs, infos = envs.reset()
    require((int(infos["task_id"][0]), int(infos["trial_id"][0])) == cells[0], "reset() starts a grid anew")


def _check_next_step(envs: VLAVectorEnv, outcome: Outcome) -> None:
    require("final_obs" not in outcome[4], "NEXT_STEP: the last observation comes as the observation")
    obs, reward_N, terminated_N, truncated_N, infos = envs.step(_idle(envs))
    require(
        not reward_N.any() and not infos["executed"].any(), "NEXT_STEP: the step after the end only resets"
    )
    require(not (terminated_N | truncated_N).any(), "NEXT_STEP: its flags are down")
    require(not has_episode(infos).any(), "NEXT_STEP: an episode is told once")
    check_observation(envs, obs, infos)
    require(bool((envs.step(_idle(envs))[4]["executed"] > 0).all()), "NEXT_STEP: the step after that runs")


def _check_same_step(envs: VLAVectorEnv, outcome: Outcome) -> None:
    obs, _, terminated_N, truncated_N, infos = outcome
    ended_N = terminated_N | truncated_N
    require(
        np.array_equal(infos["_final_obs"], ended_N), "SAME_STEP: `_final_obs` is the mask of ended slots"
    )
    require(np.array_equal(infos["_final_info"], ended_N), "SAME_STEP: `_final_info` likewise")
    final_info = infos["final_info"]
    require(bool(has_episode(final_info).all()), "SAME_STEP: `episode` is in final_info")
    require(not has_episode(infos).any(), "SAME_STEP: and only there")
    require(not infos["executed"].any(), "SAME_STEP: the new episode has run nothing")
    for slot, last in enumerate(infos["final_obs"]):
        require(last in envs.single_observation_space, "SAME_STEP: final_obs is an observation")
        require(
            not np.shares_memory(last["image"], obs["image"]), "SAME_STEP: final_obs is an array of its own"
        )
        text = envs.benchmark.tasks[int(final_info["task_id"][slot])].instruction
        require(last["instruction"] == text, "SAME_STEP: final_obs tells the task that has ended")
    check_observation(envs, obs, infos)
    require(bool((envs.step(_idle(envs))[4]["executed"] > 0).all()), "SAME_STEP: the next step runs")


def _check_disabled(envs: VLAVectorEnv, outcome: Outcome) -> None:
    before, _, terminated_N, truncated_N, _ = outcome
    obs, reward_N, still_terminated_N, still_truncated_N, infos = envs.step(_idle(envs))
    require(
        not reward_N.any() and not infos["executed"].any(), "DISABLED: a finished slot costs and pays nothing"
    )
    require(
        not infos["success"].any(),
        "DISABLED: a finished slot was solved in its last decision, not in later ones",
    )
    held = np.array_equal(terminated_N, still_terminated_N) and np.array_equal(truncated_N, still_truncated_N)
    require(held and same_bytes(before, obs), "DISABLED: its flags and observation stay")
    first_N = np.arange(envs.num_envs) == 0
    after, infos = envs.reset(options={"reset_mask": first_N})
    check_observation(envs, after, infos)
    require(
        all(same_bytes(_row(after, slot), _row(obs, slot)) for slot in range(1, envs.num_envs)),
        "DISABLED: a reset leaves the slots outside its mask alone",
    )
    executed_N = envs.step(_idle(envs))[4]["executed"]
    require(np.array_equal(executed_N > 0, first_N), "DISABLED: only the slots of the mask run on")


def _to_the_end(envs: VLAVectorEnv) -> Outcome:
    """Do nothing until an episode ends; every step's observation is checked."""
    longest = max(task.horizon for task in envs.benchmark.tasks)
    for decision in itertools.count():
        require(decision * envs.chunk <= longest, "an episode ends at its horizon at the latest")
        outcome = envs.step(_idle(envs))
        check_observation(envs, outcome[0], outcome[4])
        if (outcome[2] | outcome[3]).any():
            return outcome
    raise AssertionError


def _idle(envs: VLAVectorEnv) -> np.ndarray:
    return np.zeros((envs.num_envs, *envs.single_action_space.shape), dtype=np.float32)


def _row(obs: Observation, slot: int) -> dict[str, Any]:
    return {key: value[slot] for key, value in obs.items()}
