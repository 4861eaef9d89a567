"""`SB3VecEnv`: a `VLAVectorEnv` as a Stable-Baselines3 `VecEnv`.

The only module of this package that imports Stable-Baselines3 (and with it torch); `as_sb3` loads it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvStepReturn, VecEnvWrapper

from vla_gym.errors import BadValue, check_known
from vla_gym.observation import encode_instructions
from vla_gym.vector.start_states import START_OPTIONS
from vla_gym.vector.step import EnvStep
from vla_gym.vector.vector_env import VLAVectorEnv


class SB3VecEnv(VecEnv):
    """Same-step resets, observations as arrays only (`instruction` uint8 `[N, MAX_INSTRUCTION_BYTES]`, UTF-8).

    Each `infos[i]` is `VLAVectorEnv`'s, of the episode that was just stepped, with additions: always
    `TimeLimit.truncated`; on the last decision `is_success`, `terminal_observation` and, in `episode`, SB3's keys
    `r`, `l` (simulator steps) and `t` (seconds since the view was made). The next episode's first info is in
    `reset_infos[i]`. Idle environments are never done; where all are idle, a step raises.
    """

    def __init__(self, envs: VLAVectorEnv, wrapper: VectorEnv[Any, Any, Any] | None = None) -> None:
        """`wrapper`: Gymnasium's wrappers around `envs`, through which everything is stepped and reset."""
        self.envs = envs
        self.wrapper = wrapper
        self.begins_anew = True
        """Whether `step` begins a new episode where one ended."""
        self._action: np.ndarray | None = None
        self._began = time.perf_counter()
        super().__init__(envs.num_envs, envs.layout.bytes_space(), envs.single_action_space)

    def set_options(self, options: list[dict] | dict | None = None) -> None:
        """Set options of the next reset: one dict for `VLAVectorEnv.reset`, or a list of one per environment.

        Each dict of a list names `task_id` and `trial_id`, or all are empty. Raises `BadValue` for a list of
        another length or in which only some name a start state, `UnknownName` for another key.
        """
        if isinstance(options, list):
            options = join_options(options, self.num_envs)
        super().set_options(options)

    def reset(self) -> dict[str, np.ndarray]:
        """Begin an episode in every environment; seed and options set before are used once."""
        step = self.reset_envs(seed=self._seeds[0], options=self._options[0])
        self.reset_infos = [step.info(env) for env in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return encode_instructions(step.obs)

    def step_async(self, actions: np.ndarray) -> None:
        self._action = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Run one decision in every environment and begin new episodes where one ended."""
        assert self._action is not None, "step_wait without step_async"
        action, self._action = self._action, None
        step = self.step_envs(action)
        if step.idle_n.all():
            raise BadValue(
                "every start state of the grid has been played: ask for no more episodes than there are, or reset()"
            )
        obs, done_N, infos = encode_instructions(step.obs), step.done_n, self.step_infos(step)
        if done_N.any() and self.begins_anew:
            begun = self.reset_envs(options={"reset_mask": done_N})
            obs = encode_instructions(begun.obs)
            for env in np.flatnonzero(done_N).tolist():
                self.reset_infos[env] = begun.info(env)
        return obs, step.reward_n.astype(np.float32), done_N, infos

    def step_envs(self, actions: np.ndarray) -> EnvStep:
        """Run one decision, through the wrapper where there is one."""
        if self.wrapper is None:
            return self.envs.run_step(actions)
        obs, reward_N, *_ = self.wrapper.step(actions)
        return self.envs.last_step.wrapped(obs, reward_N)

    def reset_envs(self, **arguments: Any) -> EnvStep:
        """Begin episodes as `VLAVectorEnv.reset`, through the wrapper where there is one."""
        if self.wrapper is None:
            return self.envs.run_reset(**arguments)
        obs, _ = self.wrapper.reset(**arguments)
        return self.envs.last_step.wrapped(obs, self.envs.last_step.reward_n)

    def step_infos(self, step: EnvStep) -> list[dict[str, Any]]:
        """Return the infos (see the class) of a step, which may be of some environments only."""
        infos = [step.info(row) for row in range(len(step.done_n))]
        done = np.flatnonzero(step.done_n).tolist()
        obs = encode_instructions(step.obs) if done else {}
        for info, cut_off in zip(infos, (step.truncated_n & ~step.terminated_n).tolist(), strict=True):
            info["TimeLimit.truncated"] = cut_off
        for row in done:
            infos[row]["terminal_observation"] = {key: value[row].copy() for key, value in obs.items()}
            stats = infos[row].get("episode")
            if stats is not None:
                infos[row]["is_success"] = stats["success_once"]
                stats["r"], stats["l"] = stats["return"], stats["length"]
                stats["t"] = self.seconds()
        return infos

    def seconds(self) -> float:
        """Return the seconds since the view was made: `t` of Stable-Baselines3's monitors."""
        return round(time.perf_counter() - self._began, 6)

    def close(self) -> None:
        self.envs.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        return self.envs.render()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        return [getattr(self.envs, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        setattr(self.envs, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of the environment beneath once; its result once per index."""
        result = getattr(self.envs, method_name)(*method_args, **method_kwargs)
        return [result for _ in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """True for `Monitor`: `info["episode"]` counts whole episodes, as its record does."""
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]


def wrapped_view(env: VectorWrapper[Any, Any, Any, Any, Any] | VecEnvWrapper) -> SB3VecEnv | None:
    """Return the view of environments within wrappers, Gymnasium's or Stable-Baselines3's; None for other insides.

    Raises `BadValue` for wrappers that change the spaces, which say what a policy sees and does.
    """
    inside: Any = env.unwrapped
    if isinstance(env, VecEnvWrapper) and isinstance(inside, SB3VecEnv):
        view = SB3VecEnv(inside.envs, RewardsOfVecEnv(inside, env))
    elif isinstance(env, VectorWrapper) and isinstance(inside, VLAVectorEnv):
        view = SB3VecEnv(inside, env)
        inside.metadata["autoreset_mode"] = AutoresetMode.DISABLED
        inside = env.env
    else:
        return None
    if env.observation_space != inside.observation_space or env.action_space != inside.action_space:
        raise BadValue(f"{type(env).__name__} changes spaces: wrappers may change rewards, and values of observations")
    return view


class RewardsOfVecEnv(VectorWrapper[Any, Any, Any, Any, Any]):
    """Stable-Baselines3's wrappers around `as_sb3()` as one of Gymnasium: their rewards."""

    def __init__(self, inside: SB3VecEnv, outside: VecEnvWrapper) -> None:
        super().__init__(inside.envs)
        self._inside = inside
        self._outside = outside

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset through the wrappers; a part of the environments beneath them, which have no such reset."""
        if options and "reset_mask" in options:
            return self.env.reset(seed=seed, options=options)
        self._inside._seeds[0] = seed
        self._inside.set_options(options)
        seen: Any = self._outside.reset()
        step = self._inside.envs.last_step
        if any(not np.array_equal(seen[key], value) for key, value in encode_instructions(step.obs).items()):
            raise BadValue(
                f"{type(self._outside).__name__} changes observations; of a VecEnvWrapper the rewards count alone"
            )
        return step.obs, step.infos()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step through the wrappers; where an episode ends none begins."""
        self._inside.begins_anew = False
        try:
            _, reward_N, *_ = self._outside.step(actions)
        finally:
            self._inside.begins_anew = True
        step = self._inside.envs.last_step
        return step.obs, reward_N, step.terminated_n, step.truncated_n, step.infos()


def join_options(entries: Sequence[Mapping[str, Any]], num_envs: int) -> dict[str, np.ndarray]:
    """Reset options of all environments from one dict per environment, of `task_id` and `trial_id`: `[N]` each.

    Empty when all entries are. Raises `UnknownName` for another key, `BadValue` for another number of entries, and
    when only some name a start state.
    """
    if len(entries) != num_envs:
        raise BadValue(f"a list of reset options must have one dict per slot, {num_envs}, got {len(entries)}")
    for key in (key for entry in entries for key in entry):
        check_known("reset option of a single slot", key, START_OPTIONS)
    if not any(entries):
        return {}
    for env, entry in enumerate(entries):
        if entry.keys() != set(START_OPTIONS):
            raise BadValue(
                f"options[{env}] must give {' and '.join(START_OPTIONS)}, as another dict of the list does, got "
                f"{dict(entry)}"
            )
    return {key: np.array([entry[key] for entry in entries]) for key in START_OPTIONS}
