"""`from_gymnasium`: a Gymnasium environment of the user's becomes a benchmark that every command knows.

It is one task with a sentence, an image, and seeds as start states; `GymnasiumSimulator` drives it where it runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import pkgutil
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from types import FunctionType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from vla_gym.errors import BadValue, check_integer, check_known
from vla_gym.observation import check_instruction
from vla_gym.registry import register_benchmark
from vla_gym.simulator import SimStep
from vla_gym.specs import ActionSpec, Benchmark, StartState, Task

SPLITS = ("train", "test", "validation")
_UNBOUNDED = 1e6


DESCRIBED: dict[str, Benchmark] = {}
"""Benchmark id -> its benchmark of split "train"."""


def from_gymnasium(
    env: str | Callable[..., gym.Env[Any, Any]],
    instruction: str,
    success: str | Callable[[Mapping[str, Any]], bool] = "is_success",
    *,
    id: str | None = None,
    horizon: int | None = None,
    trials: int = 50,
    image: str | None = None,
    state: str | bool = True,
    control_hz: float = 10.0,
    in_process: bool = False,
    **kwargs: Any,
) -> Benchmark:
    """Make a benchmark of one task out of a Gymnasium environment, and register it under `id` for every command.

    Args:
        env: a Gymnasium id ("module:Id" where a module registers it), or a class or function of a module.
        instruction: the sentence that the policy gets.
        success: key of `info` that is true once the task is solved, or a function of a module, called with `info`.
        id: the benchmark's id; by default the name of `env`.
        horizon: steps after which an episode is cut off; by default the registered `max_episode_steps`.
        trials: start states of each split. Trial k of "train" is `reset(seed=k)`, of "test" `reset(seed=trials + k)`,
            of "validation" `reset(seed=2 * trials + k)`.
        image: key of the observation that is an image, uint8 `[H, W, 3]`; by default `render()` gives it
            (`render_mode="rgb_array"`).
        state: key of the observation that is the state; True takes the whole one where it is a vector, False none. Of
            a `Dict` with vectors a key, or False, must be given.
            Entries with bounds are scaled to [-1, 1].
        control_hz: steps in a second of video.
        in_process: whether it steps so fast that worker processes would only slow it down.
        kwargs: of the environment's constructor, JSON values.

    Makes the environment, resets it, looks at its image and steps it once. Raises `BadValue` for what cannot be
    driven, and for an `id` that is taken; warns where `info` of that step lacks the key `success`.
    """
    registered = isinstance(env, str)
    if isinstance(env, str):
        spec = _spec(env)
        name = env if ":" in env or in_process else _with_module(spec)
        horizon = spec.max_episode_steps if horizon is None else horizon
    else:
        name = importable("env", env)
    if horizon is None:
        raise BadValue(f"{name} does not say after how many steps an episode ends; give horizon=")
    check_instruction(instruction)
    try:
        json.dumps(kwargs)
    except (TypeError, ValueError) as error:
        raise BadValue(f"{kwargs} must be JSON values (they are recorded, and sent to workers): {error}") from error
    own_id = id or name.rpartition(":")[2].rpartition("/")[2].replace(".", "-")
    check_integer("trials", trials, 1)
    task = Task(
        name=own_id,
        instruction=instruction,
        horizon=check_integer("horizon", horizon, 1),
        num_trials=trials,
        suite=own_id,
    )
    driven = {
        "env": name,
        "registered": registered,
        "env_kwargs": kwargs,
        "success": success if isinstance(success, str) else importable("success", success),
        "image": image,
        "state": state,
        "first_seed": 0,
    }
    action_dim, state_dim = _sizes(driven)  # before anything is registered: what fails here can be called again
    benchmark = Benchmark(
        id=own_id,
        tasks=(task,),
        action_dim=action_dim,
        action_spec=ActionSpec(rotation="none", gripper="none", frame="delta"),
        state_dim=state_dim,
        cameras=("image",),
        default_image_size=64,
        control_hz=control_hz,
        simulator=f"{__name__}:GymnasiumSimulator",
        simulator_kwargs=driven,
        in_process=in_process,
        protocol={
            "environment": name,
            "environment_kwargs": kwargs,
            "success": driven["success"],
            "start_states": "trial k is reset(seed=k) of split train, reset(seed=trials + k) of split test, "
            "reset(seed=2 * trials + k) of split validation",
        },
    )
    if DESCRIBED.get(own_id, benchmark) != benchmark:
        raise BadValue(f"environment id '{own_id}' is taken by another environment; choose another id=")
    register_benchmark(f"{__name__}:gymnasium_benchmark", {own_id: 1})
    DESCRIBED[own_id] = benchmark
    return benchmark


def gymnasium_benchmark(env_id: str, *, split: str = "train") -> Benchmark:
    """Describe an environment that `from_gymnasium` has registered."""
    check_known("split", split, SPLITS)
    benchmark = DESCRIBED[env_id]
    first_seed = SPLITS.index(split) * benchmark.tasks[0].num_trials
    return dataclasses.replace(benchmark, simulator_kwargs={**benchmark.simulator_kwargs, "first_seed": first_seed})


class GymnasiumSimulator:
    """One environment of the user's; see `vla_gym.simulator.Simulator`."""

    def __init__(
        self,
        tasks: tuple[Task, ...],
        image_size: int,
        cameras: tuple[str, ...],
        *,
        env: str,
        registered: bool,
        env_kwargs: Mapping[str, Any],
        success: str,
        image: str | None,
        state: str | bool,
        first_seed: int,
    ) -> None:
        self._env = _make_env(env, env_kwargs, registered=registered, rendered=image is None)
        self.low_A, self._high_A = action_bounds(self._env.action_space, env)
        self._success = success_of(success)
        self._image_key, self._image_size, self._cameras = image, image_size, cameras
        self._state_key, self._state_space = state, state_space(self._env.observation_space, state)
        if image is not None:
            check_known("key of the observation", image, _parts(self._env.observation_space))
        self._first_seed = first_seed
        self.info: Mapping[str, Any] = {}
        """Of the last step."""
        self._obs: Any = None

    def reset(self, start: StartState) -> str:
        seed = self._first_seed + start.trial_id
        self._obs, _ = self._env.reset(seed=seed)
        flat = gym.spaces.flatten(self._env.observation_space, self._obs)
        return hashlib.sha256(f"{seed} ".encode() + np.asarray(flat).tobytes()).hexdigest()[:32]

    def step(self, action_A: np.ndarray) -> SimStep:
        space = self._env.action_space
        scaled_A = self.low_A + (action_A.astype(np.float64) + 1.0) / 2.0 * (self._high_A - self.low_A)
        if np.issubdtype(space.dtype, np.integer):
            scaled_A = np.rint(scaled_A)
        action = scaled_A.astype(space.dtype).reshape(space.shape)
        self._obs, reward, terminated, truncated, self.info = self._env.step(action)
        return SimStep(
            reward=float(reward),
            success=bool(self._success(self.info)),
            terminated=bool(terminated),
            truncated=bool(truncated),
        )

    def observe(self) -> Mapping[str, np.ndarray]:
        out: dict[str, np.ndarray] = {}
        if "image" in self._cameras:
            image = self._env.render() if self._image_key is None else self._obs[self._image_key]
            out["image"] = square(image, self._image_size)
        if self._state_space is not None:
            value = self._obs[self._state_key] if isinstance(self._state_key, str) else self._obs
            out["state"] = scaled_state(np.asarray(value), self._state_space)
        return out

    def close(self) -> None:
        self._env.close()


def _make_env(env: str, kwargs: Mapping[str, Any], *, registered: bool, rendered: bool) -> gym.Env[Any, Any]:
    """Return the environment: of a Gymnasium id without its time limit, or what "module:name" makes.

    With `rendered` it is asked for arrays of `render()`, a class or function where it has a `render_mode`.
    """
    asked = {"render_mode": "rgb_array"} if rendered else {}
    if registered:
        return gym.make(env, max_episode_steps=-1, disable_env_checker=True, **{**asked, **kwargs})
    target = pkgutil.resolve_name(env)
    if "render_mode" not in inspect.signature(target).parameters:
        asked = {}
    made = target(**{**asked, **kwargs})
    if not isinstance(made, gym.Env):
        raise BadValue(f"{env} makes {type(made).__name__}, expected one gymnasium.Env")
    return made


def action_bounds(space: gym.Space[Any], env: str) -> tuple[np.ndarray, np.ndarray]:
    """Return what -1 and +1 mean, float64 `[A]`; raises `BadValue` for actions that are no bounded vectors."""
    if not isinstance(space, gym.spaces.Box) or not has_bounds(space).all():
        raise BadValue(
            f"actions of {env} must be a Box with finite bounds, got {space}; a function can make it "
            "gymnasium.wrappers.TransformAction(env, to_its_action, Box(-1, 1, (A,)))"
        )
    return space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()


def has_bounds(space: gym.spaces.Box) -> np.ndarray:
    """Return which entries have both bounds, bool of the space's shape.

    Bounds that are millions apart are none: many spaces have float32's largest number for infinity.
    """
    return space.high.astype(np.float64) - space.low.astype(np.float64) < _UNBOUNDED


def state_space(space: gym.Space[Any], state: str | bool) -> gym.spaces.Box | None:
    """Return the part of the observation space that is the state, None for none; raises for a key that is not there."""
    parts = _parts(space)
    if isinstance(state, str):
        check_known("key of the observation", state, parts)
        space = parts[state]
        if not _is_vector(space):
            raise BadValue(f"the state '{state}' must be a vector, got {space}")
    elif not state:
        return None
    elif vectors := [key for key, part in parts.items() if _is_vector(part)]:
        raise BadValue(
            f"which of {', '.join(vectors)} is the state? say state='{vectors[0]}', or state=False for a policy that "
            "looks at the image only"
        )
    return space if _is_vector(space) else None  # type: ignore[return-value]


def _parts(space: gym.Space[Any]) -> Mapping[str, gym.Space[Any]]:
    return space.spaces if isinstance(space, gym.spaces.Dict) else {}


def _is_vector(space: gym.Space[Any]) -> bool:
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 1


def scaled_state(value_S: np.ndarray, space: gym.spaces.Box) -> np.ndarray:
    """Return the state, float32 `[S]`, entries that have both bounds (`has_bounds`) in [-1, 1]."""
    low_S, high_S = space.low.astype(np.float64), space.high.astype(np.float64)
    bounded_S = (high_S > low_S) & has_bounds(space)
    span_S = np.where(bounded_S, high_S - low_S, 2.0)
    scaled_S = np.where(bounded_S, 2.0 * (value_S - np.where(bounded_S, low_S, 0.0)) / span_S - 1.0, value_S)
    return scaled_S.astype(np.float32)


def square(image: Any, size: int) -> np.ndarray:
    """Return the image in `size` x `size` pixels, whole: uint8 `[size, size, 3]`."""
    image = np.asarray(image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"the image must be uint8 [H, W, 3], got {image.dtype} {list(image.shape)}")
    if image.shape[:2] == (size, size):
        return image
    from PIL import Image

    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BOX))


def _sizes(driven: Mapping[str, Any]) -> tuple[int, int]:
    """Return the length of the environment's actions and of its state, 0 without one.

    Resets, looks and steps once. Raises `BadValue` for what does not fit or fails; warns where `info` lacks `success`.
    """
    name, success = driven["env"], driven["success"]
    try:
        simulator = GymnasiumSimulator((), 1, ("image",), **driven)
    except (TypeError, gym.error.Error) as error:
        raise BadValue(f"{name} cannot be made with {driven['env_kwargs']}: {error}") from error
    action_dim = len(simulator.low_A)
    try:
        simulator.reset(StartState(task_id=0, trial_id=0))
        state = simulator.observe().get("state", ())
        simulator.step(np.zeros(action_dim, dtype=np.float32))
    except Exception as error:
        raise BadValue(
            f"{name} fails at reset(seed=0), its image or its first step: {type(error).__name__}: {error}. Its "
            "image is what render() gives, or a key of the observation, uint8 [H, W, 3], that image= names"
        ) from error
    finally:
        with suppress(Exception):  # what failed first is said
            simulator.close()
    if ":" not in success and success not in simulator.info:
        warnings.warn(
            f"info of {name}'s first step has no '{success}' (it has {', '.join(map(str, simulator.info)) or 'nothing'}"
            "): no episode counts as solved unless it comes later; success= names the key",
            stacklevel=3,
        )
    return action_dim, len(state)


def success_of(success: str) -> Callable[[Mapping[str, Any]], Any]:
    """Return what reads success from `info`: of a key, or "module:name" of a function."""
    return pkgutil.resolve_name(success) if ":" in success else lambda info: bool(info.get(success, False))


def importable(what: str, value: object) -> str:
    """Return "module:name" of a class or function; raises `BadValue` for one that a worker process could not import."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(value, type | FunctionType) or module in (None, "__main__") or "<" in str(name):
        raise BadValue(
            f"{what} must be a class or a function at the top of a module (worker processes import it), got {value!r}"
        )
    return f"{module}:{name}"


def _with_module(spec: EnvSpec) -> str:
    """The id with the module that registers it, as worker processes need it; Gymnasium's own ids as they are."""
    entry = spec.entry_point
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", None)
    if module is None or module.partition(".")[0] == "gymnasium":
        return spec.id
    if module == "__main__":
        raise BadValue(
            f"'{spec.id}' is registered in the program itself, which worker processes do not import; give "
            "in_process=True, or register it in a module"
        )
    return f"{module}:{spec.id}"


def _spec(env: str) -> EnvSpec:
    """Return Gymnasium's entry for an id; of "module:Id" the module is imported first."""
    module, _, name = env.rpartition(":")
    try:
        if module:
            import_module(module)
        return gym.spec(name)
    except (gym.error.Error, ModuleNotFoundError) as error:
        raise BadValue(
            f"Gymnasium does not know '{env}' ({str(error).rstrip('.')}); 'module:Id' imports the module that "
            "registers it"
        ) from error
