"""Every name a hyperparameter entry may hold, and the kind of value it takes. Imports nothing heavy.

The algorithm tables mirror the keyword arguments of `zoo.PPO` and `zoo.GRPO`; a test compares them, so
a typo is answered in a fraction of a second, without importing torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vla_gym.errors import BadValue, unknown_name

KindName = Literal["int", "float", "bool", "str", "mapping", "schedule", "pair"]


@dataclass(frozen=True)
class Kind:
    """What one setting takes."""

    name: KindName
    """`schedule` is a number or a mapping such as `{schedule: linear, start: 3.0e-4, end: 0.0}`;
    `pair` is two numbers, `[low, high]`."""
    optional: bool = False
    """May it be null?"""


_INT, _FLOAT, _BOOL, _STR = Kind("int"), Kind("float"), Kind("bool"), Kind("str")
_MAPPING, _SCHEDULE = Kind("mapping"), Kind("schedule")

RUN_SETTINGS: Mapping[str, Kind] = {
    "n_timesteps": _INT,
    "num_envs": _INT,
    "eval_freq": _INT,
    "eval_episodes": _INT,
    "save_freq": _INT,
    "policy_kwargs": _MAPPING,
}
"""Settings of the run itself; steps are simulator steps, all environments together."""

ENV_SETTINGS: Mapping[str, Kind] = {
    "chunk": _INT,
    "group_size": _INT,
    "image_size": _INT,
    "wrist_camera": _BOOL,
    "reward": _STR,
    "reward_scale": _FLOAT,
    "split": _STR,
    "num_workers": _INT,
    "env_kwargs": _MAPPING,
}
"""Keyword arguments of `vla_gym.make_vec`; `env_kwargs` holds the benchmark family's own options."""

_SHARED: Mapping[str, Kind] = {
    "learning_rate": _SCHEDULE,
    "batch_size": _INT,
    "n_epochs": _INT,
    "clip_range": _SCHEDULE,
    "clip_range_high": Kind("float", optional=True),
    "ent_coef": _FLOAT,
    "max_grad_norm": _FLOAT,
    "target_kl": Kind("float", optional=True),
    "dual_clip": Kind("float", optional=True),
    "logprob_level": _STR,
    "recompute_logprobs": _BOOL,
}
_PPO: Mapping[str, Kind] = {
    "n_steps": _INT,
    "gamma": _FLOAT,
    "gae_lambda": _FLOAT,
    "clip_range_vf": Kind("schedule", optional=True),
    "normalize_advantage": _BOOL,
    "vf_coef": _FLOAT,
    "value_clip": _STR,
    "huber_delta": Kind("float", optional=True),
}
_GRPO: Mapping[str, Kind] = {
    "rollouts_per_update": _INT,
    "score_bounds": Kind("pair", optional=True),
}

ALGORITHM_SETTINGS: Mapping[str, Mapping[str, Kind]] = {
    "ppo": {**_SHARED, **_PPO},
    "grpo": {**_SHARED, **_GRPO},
}
"""Algorithm -> the keyword arguments of its class that a run may set."""

ALGORITHMS: Mapping[str, str] = {"ppo": "zoo.ppo:PPO", "grpo": "zoo.grpo:GRPO"}
"""Algorithm -> "module:Class"; imported only when a run starts."""


def check_algorithm(algo: str) -> str:
    """`algo` if it exists, else `UnknownName`."""
    if algo not in ALGORITHMS:
        raise unknown_name("algorithm", algo, ALGORITHMS)
    return algo


def known_settings(algo: str) -> dict[str, Kind]:
    """All settings of a run with `algo`."""
    return {**RUN_SETTINGS, **ENV_SETTINGS, **ALGORITHM_SETTINGS[algo]}


def check_settings(algo: str, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values with each number of the right kind; `where` starts the error message.

    Raises `UnknownName` for a setting that does not exist and `BadValue` for a value of another kind.
    """
    known = known_settings(algo)
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise unknown_name(f"setting ({where})", str(name), known, show=40)
        checked[name] = _coerce(known[name], value, f"{where}: {name}")
    return checked


def _coerce(kind: Kind, value: object, where: str) -> Any:
    if value is None and kind.optional:
        return None
    if kind.name == "mapping" or (kind.name == "schedule" and isinstance(value, Mapping)):
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return dict(value)
        raise BadValue(f"{where} must be a mapping such as {{name: value}}, got {value!r}")
    if kind.name == "bool":
        if isinstance(value, bool):
            return value
        raise BadValue(f"{where} must be true or false, got {value!r}")
    if kind.name == "str":
        if isinstance(value, str):
            return value
        raise BadValue(f"{where} must be a word, got {value!r}")
    if kind.name == "pair":
        if isinstance(value, list | tuple) and len(value) == 2:
            return [_number(one, where) for one in value]
        raise BadValue(f"{where} must be two numbers such as [0.1, 0.9], got {value!r}")
    number = _number(value, where)
    if kind.name != "int":
        return number
    if number != int(number):
        raise BadValue(f"{where} must be a whole number, got {value!r}")
    return int(number)


def _number(value: object, where: str) -> float:
    # YAML 1.1 reads 3e-4 (no dot) as text; a number was meant.
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise BadValue(f"{where} must be a number, got {value!r}")
    return number
