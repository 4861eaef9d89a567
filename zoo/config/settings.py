"""Every name a hyperparameter entry may hold, and the kind of value it takes. Imports nothing heavy.

The algorithm tables mirror the keyword arguments of `zoo.PPO` and `zoo.GRPO`; a test compares them, so
a typo is answered in a fraction of a second, without importing torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from vla_gym.errors import BadValue, UnknownName, unknown_name
from vla_gym.observation import LARGEST_IMAGE, SMALLEST_IMAGE
from vla_gym.rewards import RewardKind
from vla_gym.workers.pool import OnWorkerError
from zoo.config.schedules import build_schedule

KindName = Literal["int", "float", "bool", "str", "mapping", "settings", "schedule", "pair"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What one setting takes."""

    name: KindName
    """`schedule` is a number or a mapping such as `{schedule: linear, start: 3.0e-4, end: 0.0}`;
    `pair` is two numbers, `[low, high]`; `settings` is a mapping with settings of its own."""
    optional: bool = False
    """May it be null?"""
    low: float = -math.inf
    """Smallest number allowed."""
    high: float = math.inf
    """Largest number allowed."""
    positive: bool = False
    """Must it be above 0?"""
    choices: tuple[str, ...] = ()
    """Of a `str`: the words there are; empty where only what is set up later knows them."""
    settings: Mapping[str, Kind] = field(default_factory=dict)
    """Of a `settings` mapping: what it may hold."""


_COUNT, _COUNT_OR_0 = Kind(name="int", low=1), Kind(name="int", low=0)
_BOOL, _STR, _MAPPING = Kind(name="bool"), Kind(name="str"), Kind(name="mapping")
_AT_LEAST_0, _POSITIVE = Kind(name="float", low=0), Kind(name="float", positive=True)
_SHARE = Kind(name="float", low=0, high=1)
_MAYBE_POSITIVE = Kind(name="float", optional=True, positive=True)
_RATE = Kind(name="schedule", low=0)
_CREDIT = Kind(name="str", choices=("chunk", "action"))

_OPTIMIZER: Mapping[str, Kind] = {
    "eps": _POSITIVE,
    "weight_decay": _AT_LEAST_0,
    "betas": Kind(name="pair", low=0, high=1),
}
POLICY_SETTINGS: Mapping[str, Kind] = {
    "backbone_kwargs": _MAPPING,
    "family": _STR,
    "unnorm_key": _STR,
    "revision": _STR,
    "temperature": _POSITIVE,
    "top_k": _COUNT_OR_0,
    "greedy": Kind(name="str", choices=("likeliest", "mean")),
    "compile": _BOOL,
    "value_lr": _MAYBE_POSITIVE,
    "optimizer_kwargs": Kind(name="settings", settings=_OPTIMIZER),
}
"""What a run may set of `vla_policies.VLAPolicy`."""

RUN_SETTINGS: Mapping[str, Kind] = {
    "n_timesteps": _COUNT,
    "num_envs": _COUNT,
    "eval_freq": _COUNT_OR_0,
    "eval_episodes": _COUNT_OR_0,
    "save_freq": _COUNT_OR_0,
    "policy_kwargs": Kind(name="settings", settings=POLICY_SETTINGS),
}
"""Settings of the run itself; steps are simulator steps, all environments together."""

ENV_SETTINGS: Mapping[str, Kind] = {
    "chunk": _COUNT,
    "group_size": _COUNT,
    "image_size": Kind(name="int", low=SMALLEST_IMAGE, high=LARGEST_IMAGE),
    "wrist_camera": _BOOL,
    "state": _BOOL,
    "instructions": _MAPPING,
    "reward": Kind(name="str", choices=get_args(RewardKind)),
    "reward_scale": _POSITIVE,
    "split": _STR,
    "num_workers": _COUNT_OR_0,
    "on_worker_error": Kind(name="str", choices=get_args(OnWorkerError)),
    "step_timeout": _POSITIVE,
    "reset_timeout": _POSITIVE,
    "env_kwargs": _MAPPING,
}
"""Keyword arguments of `vla_gym.make_vec`; `env_kwargs` holds the benchmark family's own options."""

_ALIASES: Mapping[str, str] = {
    alias: name
    for name, aliases in {
        "learning_rate": ("lr", "actor_lr", "policy_lr", "optim_lr"),
        "value_lr": ("critic_lr", "value_learning_rate"),
        "batch_size": ("minibatch_size", "mini_batch_size", "global_batch_size"),
        "n_epochs": ("epochs", "num_epochs", "update_epochs", "ppo_epochs"),
        "n_steps": ("num_steps", "rollout_steps", "rollout_length"),
        "n_timesteps": ("total_timesteps", "timesteps", "max_steps"),
        "num_envs": ("n_envs", "nenvs", "envs"),
        "group_size": ("num_generations", "n_generations", "group"),
        "clip_range": ("clip", "clip_coef", "clip_eps", "clip_ratio", "cliprange"),
        "clip_range_high": ("clip_high", "clip_ratio_high"),
        "clip_range_vf": ("clip_vf", "vf_clip", "cliprange_value"),
        "ent_coef": ("entropy_coef", "entropy_coeff", "entropy_bonus"),
        "vf_coef": ("value_coef", "value_loss_coef", "critic_coef"),
        "kl_coef": ("beta", "kl_beta", "kl_loss_coef"),
        "gamma": ("discount", "discount_factor"),
        "gae_lambda": ("lam", "lambda", "lmbda"),
        "max_grad_norm": ("grad_clip", "clip_grad", "gradient_clip"),
        "normalize_advantage": ("norm_adv", "normalize_advantages", "adv_norm"),
        "chunk": ("chunk_size", "chunk_len", "num_action_chunks", "action_horizon"),
        "image_size": ("img_size", "resolution", "image_resolution"),
        "wrist_camera": ("wrist", "wrist_image", "use_wrist"),
        "temperature": ("temp", "sampling_temperature"),
    }.items()
    for alias in aliases
}
"""What other projects call a setting -> its name here; only ever a hint."""

_SHARED: Mapping[str, Kind] = {
    "learning_rate": _RATE,
    "batch_size": _COUNT,
    "n_epochs": _COUNT,
    "clip_range": _RATE,
    "clip_range_high": _MAYBE_POSITIVE,
    "ent_coef": Kind(name="float"),
    "max_grad_norm": _POSITIVE,
    "target_kl": _MAYBE_POSITIVE,
    "dual_clip": _MAYBE_POSITIVE,
    "logprob_level": Kind(name="str", choices=("token", "action", "chunk")),
    "recompute_logprobs": _BOOL,
    "kl_coef": _AT_LEAST_0,
    "kl_reference": Kind(name="str", choices=("adapter_off", "copy")),
    "micro_batch_size": Kind(name="int", optional=True, low=1),
}
_PPO: Mapping[str, Kind] = {
    "n_steps": _COUNT,
    "gamma": _SHARE,
    "gae_lambda": _SHARE,
    "clip_range_vf": Kind(name="schedule", optional=True, positive=True),
    "normalize_advantage": _BOOL,
    "vf_coef": _AT_LEAST_0,
    "value_clip": Kind(name="str", choices=("replace", "max")),
    "huber_delta": _MAYBE_POSITIVE,
    "critic_warmup_updates": _COUNT_OR_0,
    "reward_level": _CREDIT,
    "value_level": _CREDIT,
    "bootstrap_time_limit": _BOOL,
}
_GRPO: Mapping[str, Kind] = {
    "rollouts_per_update": _COUNT,
    "score_bounds": Kind(name="pair", optional=True),
    "resample_dead_groups": _COUNT_OR_0,
    "max_barren_episodes": _COUNT_OR_0,
}

ALGORITHM_SETTINGS: Mapping[str, Mapping[str, Kind]] = {
    "ppo": {**_SHARED, **_PPO},
    "grpo": {**_SHARED, **_GRPO},
}
"""Algorithm -> the keyword arguments of its class that a run may set."""

ALGORITHMS: Mapping[str, str] = {"ppo": "zoo.algorithms.ppo:PPO", "grpo": "zoo.algorithms.grpo:GRPO"}
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
    return _check_mapping(known_settings(algo), values, where)


def _check_mapping(known: Mapping[str, Kind], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise _unknown_setting(known, str(name), where)
        checked[name] = _coerce(known[name], value, f"{where}: {name}")
    return checked


def _unknown_setting(known: Mapping[str, Kind], name: str, where: str) -> UnknownName:
    """The error for it; a name that others have for a setting is nearer than one that is spelt alike."""
    error, meant = unknown_name(f"setting ({where})", name, known, show=40), _ALIASES.get(name.casefold())
    if meant not in known:
        return error
    return UnknownName(f"{str(error).partition(' Did you mean')[0]} Did you mean '{meant}'?")


def _coerce(kind: Kind, value: object, where: str) -> Any:
    if value is None and kind.optional:
        return None
    if kind.name == "bool":
        if isinstance(value, bool):
            return value
        raise BadValue(f"{where} must be true or false, got {value!r}")
    if kind.name == "str":
        if isinstance(value, str):
            return _chosen(kind, value, where)
        raise BadValue(f"{where} must be a word, got {value!r}")
    if kind.name == "pair":
        if isinstance(value, list | tuple) and len(value) == 2:
            return [_number(kind, one, where) for one in value]
        raise BadValue(f"{where} must be two numbers such as [0.1, 0.9], got {value!r}")
    if kind.name in ("mapping", "settings"):
        return _mapping(kind, value, where)
    if kind.name == "schedule" and isinstance(value, Mapping):
        return _schedule(kind, value, where)
    number = _number(kind, value, where)
    if kind.name != "int":
        return number
    if number != int(number):
        raise BadValue(f"{where} must be a whole number, got {value!r}")
    return int(number)


def _chosen(kind: Kind, value: str, where: str) -> str:
    if kind.choices and value not in kind.choices:
        raise unknown_name(f"choice ({where})", value, kind.choices)
    return value


def _mapping(kind: Kind, value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise BadValue(f"{where} must be a mapping such as {{name: value}}, got {value!r}")
    return _check_mapping(kind.settings, value, where) if kind.name == "settings" else dict(value)


def _schedule(kind: Kind, value: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The mapping with its numbers checked; it stays a mapping, so that a run's configuration can hold it."""
    numbers = {key: _number(kind, one, f"{where}.{key}") for key, one in value.items() if key != "schedule"}
    checked = {**value, **numbers}
    build_schedule(checked, where)
    return checked


def _number(kind: Kind, value: object, where: str) -> float:
    # YAML 1.1 reads 3e-4 (no dot) as text; a number was meant.
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise BadValue(f"{where} must be a number, got {value!r}")
    if kind.positive and number <= 0:
        raise BadValue(f"{where} must be above 0, got {value!r}")
    if number < kind.low or number > kind.high:
        bound = f"at least {kind.low:g}" if number < kind.low else f"at most {kind.high:g}"
        raise BadValue(f"{where} must be {bound}, got {value!r}")
    return number
