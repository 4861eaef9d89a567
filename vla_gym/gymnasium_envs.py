"""`from_gymnasium`: a Gymnasium environment of the user's becomes a benchmark that every command knows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from types import FunctionType
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from vla_gym.adapters.gymnasium_env import DESCRIBED, Description, gymnasium_benchmark, sizes
from vla_gym.errors import BadValue, check_integer, shown
from vla_gym.observation import check_instruction
from vla_gym.registry import register_benchmark
from vla_gym.specs import Benchmark


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
        image: key of the observation that is a picture, uint8 `[H, W, 3]`; by default `render()` gives it
            (`render_mode="rgb_array"`).
        state: key of the observation that is the state; True takes the whole one where it is a vector, False none. Of
            a `Dict` with vectors a key, or False, must be given.
            Entries with bounds are scaled to [-1, 1].
        control_hz: steps in a second of film.
        in_process: whether it steps so fast that worker processes would only slow it down.
        kwargs: of the environment's constructor, JSON values.

    Makes the environment, resets it, looks at its picture and steps it once. Raises `BadValue` for what cannot be
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
    if not isinstance(instruction, str) or not instruction.strip():
        raise BadValue(f"instruction must be the sentence that the policy gets, got {shown(instruction)}")
    check_instruction(instruction)
    _check_json(kwargs)
    own_id = id or name.rpartition(":")[2].rpartition("/")[2].replace(".", "-")
    described = Description(
        env=name,
        registered=registered,
        instruction=instruction,
        success=success if isinstance(success, str) else importable("success", success),
        horizon=check_integer("horizon", horizon, 1),
        trials=check_integer("trials", trials, 1),
        image=image,
        state=state,
        control_hz=control_hz,
        in_process=in_process,
        kwargs=kwargs,
    )
    if DESCRIBED.get(own_id, described) != described:
        raise BadValue(f"environment id '{own_id}' is taken by another environment; choose another id=")
    sizes(described)  # before anything is registered: what fails here can be called again, put right
    register_benchmark(f"{gymnasium_benchmark.__module__}:gymnasium_benchmark", {own_id: 1})
    DESCRIBED[own_id] = described
    return gymnasium_benchmark(own_id)


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


def _check_json(kwargs: Mapping[str, Any]) -> None:
    """Raise `BadValue` for an argument that no JSON file can hold."""
    for name, value in kwargs.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise BadValue(f"{name} must be a JSON value (it is recorded, and sent to workers): {error}") from error


def _spec(env: str) -> EnvSpec:
    """What Gymnasium has registered; of "module:Id" the module is imported first."""
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
