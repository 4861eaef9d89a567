"""Checks settings against annotations: types, ranges, words, nearest names. Imports nothing heavy."""

from __future__ import annotations

import math
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

import yaml

from vla_gym.errors import BadValue, UnknownName, shown, unknown_name
from vla_gym.registry import list_envs, option_names
from vla_gym.specs import LONGEST_WAIT
from zoo.config.schedules import build_schedule


@dataclass(frozen=True, kw_only=True)
class Range:
    """Which numbers an `Annotated` number, or each number of a pair or schedule, may be."""

    low: float = -math.inf
    """Smallest."""
    high: float = math.inf
    """Largest."""
    above: float = -math.inf
    """Excluded lower end."""
    below: float = math.inf
    """Excluded upper end."""


LARGEST_COUNT = 10**15
"""Simulator steps that 10^5 simulators of 1,000 steps a second make in 115 days."""
MOST_PROCESSES = 2**16
"""Simulators side by side, or ranks."""
Count = Annotated[int, Range(low=1, high=LARGEST_COUNT)]
CountOrZero = Annotated[int, Range(low=0, high=LARGEST_COUNT)]
Processes = Annotated[int, Range(low=1, high=MOST_PROCESSES)]
Decisions = Annotated[int, Range(low=1, high=10**9)]
"""Decisions or frames that are in memory together."""
Passes = Annotated[int, Range(low=1, high=10**5)]
"""How often something is repeated."""
Positive = Annotated[float, Range(above=0, high=1e12)]
NonNegative = Annotated[float, Range(low=0, high=1e12)]
Fraction = Annotated[float, Range(low=0, high=1)]
Seconds = Annotated[float, Range(above=0, high=LONGEST_WAIT)]
Schedulable = float | Mapping[str, Any]
"""A number, or a schedule's mapping such as `{schedule: linear, start: 3.0e-4, end: 0.0}`."""

Texts = str | Sequence[str]
"""A text, or several."""

ALIASES: Mapping[str, str] = {
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
"""Other projects' name of a setting -> its name here; only ever a hint."""


def annotations_of(cls: type) -> Mapping[str, Any]:
    """Return field -> annotation of a dataclass or `TypedDict`."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in fields(cls)} if is_dataclass(cls) else hints


def defaults_of(cls: type) -> Mapping[str, Any]:
    """Return field -> default of a dataclass, fields without one left out."""
    return {f.name: f.default for f in fields(cls) if f.default is not MISSING}


def check_fields(known: Mapping[str, Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values as the annotations in `known` have them; `where` starts the error message.

    Raises `UnknownName` for a name that is not known and `BadValue` for a value of another kind.
    """
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise unknown_setting(known, str(name), where)
        checked[name] = check_value(known[name], value, f"{where}: {name}")
    return checked


def unknown_setting(known: Collection[str], name: str, where: str) -> UnknownName:
    """Return the error; another project's name of a setting, or a benchmark's option, is nearer than a spelling."""
    meant = ALIASES.get(name.casefold())
    meant = meant if meant in known else None
    if meant is None and "env_kwargs" in known and any(name in option_names(env) for env in list_envs()):
        meant = f"env_kwargs:{{{name}: ...}}"
    return unknown_name(f"setting ({where})", name, known, show=40, meant=meant)


def check_value(annotation: Any, value: object, where: str) -> Any:
    """Return `value` as the annotation has it: an `int` for 1e6, a pair as a list; raises like `check_fields`."""
    annotation, limits = _without_range(annotation)
    if types.NoneType in (options := get_args(annotation)):
        if value is None:
            return None
        options = tuple(option for option in options if option is not types.NoneType)
        annotation, limits = _without_range(reduce(or_, options))
    if annotation in (Texts, Sequence[str]):
        return _texts(annotation, value, where)
    origin = get_origin(annotation) or annotation
    if origin is bool:
        if isinstance(value, bool):
            return value
        raise BadValue(f"{where} must be true or false, got {shown(value)}")
    if origin in (str, Literal):
        return _word(get_args(annotation), value, where)
    if origin is tuple:
        if isinstance(value, list | tuple) and len(value) == 2:
            return [_number(limits, number, where) for number in value]
        raise BadValue(f"{where} must be two numbers such as [0.1, 0.9], got {shown(value)}")
    if origin is Mapping or is_typeddict(origin):
        return _mapping(origin, value, where)
    if annotation == Schedulable and isinstance(value, Mapping):
        return _schedule(limits, value, where)
    number = _number(limits, value, where, _SCHEDULABLE if annotation == Schedulable else "a number")
    if origin is int and number != int(number):
        raise BadValue(f"{where} must be a whole number, got {shown(value)}")
    return int(number) if origin is int else number


def _without_range(annotation: Any) -> tuple[Any, Range]:
    return get_args(annotation) if get_origin(annotation) is Annotated else (annotation, Range())


def _texts(annotation: Any, value: object, where: str) -> str | list[str]:
    """`Texts`: one or several; a sequence: none, too."""
    one = annotation == Texts
    if one and isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and (value or not one) and all(isinstance(text, str) for text in value):
        return list(value)
    raise BadValue(f"{where} must be {'text or ' if one else ''}a list of texts, got {shown(value)}")


def _word(choices: tuple[str, ...], value: object, where: str) -> str:
    if not isinstance(value, str):
        raise BadValue(f"{where} must be a word, got {shown(value)}")
    if choices and value not in choices:
        raise unknown_name(f"choice ({where})", value, choices)
    return value


def _mapping(kind: type, value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise BadValue(f"{where} must be a mapping such as {{name: value}}, got {shown(value)}")
    return check_fields(annotations_of(kind), value, where) if is_typeddict(kind) else dict(value)


def _schedule(limits: Range, value: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The mapping with its numbers checked; it stays a mapping, so that a run's configuration can hold it."""
    numbers = {key: _number(limits, number, f"{where}.{key}") for key, number in value.items() if key != "schedule"}
    checked = {**value, **numbers}
    build_schedule(checked, where)
    return checked


_SCHEDULABLE = "a number or a schedule such as {schedule: linear, start: 3.0e-4}"


def _number(limits: Range, value: object, where: str, kind: str = "a number") -> float:
    # YAML 1.1 reads 3e-4 (no dot) as text; a number was meant.
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise BadValue(f"{where} must be {kind}, got {shown(value)}")
    if number <= limits.above:
        raise BadValue(f"{where} must be above {limits.above:g}, got {shown(value)}")
    if number >= limits.below:
        raise BadValue(f"{where} must be below {limits.below:g}, got {shown(value)}")
    if number < limits.low or number > limits.high:
        bound = f"at least {limits.low:g}" if number < limits.low else f"at most {limits.high:g}"
        raise BadValue(f"{where} must be {bound}, got {shown(value)}")
    return number


def yaml_line(value: object) -> str:
    """Return `value` in YAML, on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.removesuffix("...\n").rstrip("\n")
