"""Settings as typed fields: annotations, defaults, docstrings, and the check of a value. Imports nothing heavy."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import operator
import re
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import yaml

from vla_gym.errors import BadValue, UnknownName, shown, unknown_name
from vla_gym.registry import list_envs, option_names
from vla_gym.specs import LONGEST_WAIT
from zoo.config.schedules import SHAPES


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


@dataclass(frozen=True)
class Pattern:
    """Which texts an `Annotated` text may be."""

    regex: str
    """Matches the whole text."""
    words: str
    """Describes it."""


LARGEST_COUNT = 10**15
"""Simulator steps that 10^5 simulators of 1,000 steps a second make in 115 days."""
MOST_PROCESSES = 2**16
"""Simulators side by side, or ranks."""
Count = Annotated[int, Range(low=1, high=LARGEST_COUNT)]
CountOrZero = Annotated[int, Range(low=0, high=LARGEST_COUNT)]
Processes = Annotated[int, Range(low=1, high=MOST_PROCESSES)]
Threads = Annotated[int, Range(low=1, high=4096)]
Decisions = Annotated[int, Range(low=1, high=10**9)]
"""Decisions or frames that are in memory together."""
Passes = Annotated[int, Range(low=1, high=10**5)]
"""How often something is repeated."""
Positive = Annotated[float, Range(above=0, high=1e12)]
NonNegative = Annotated[float, Range(low=0, high=1e12)]
Fraction = Annotated[float, Range(low=0, high=1)]
LARGEST_SEED = 2**32 - 1
"""The largest that `numpy.random.seed` takes."""
Seed = Annotated[int, Range(low=0, high=LARGEST_SEED)]
Device = Annotated[str, Pattern(r"auto|cpu|cuda(:\d{1,3})?", "one of auto, cpu, cuda, cuda:<index>")]
"""Of torch; whether this machine has it is asked later."""
EnvId = Annotated[
    str, Pattern(r"[A-Za-z0-9][\w-]*(/[A-Za-z0-9][\w-]*){0,2}", "an environment id such as LIBERO-Spatial/3")
]
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
    """Return field -> default of a dataclass, fields without one left out; a `TypedDict` has none."""
    return {f.name: f.default for f in fields(cls) if f.default is not MISSING} if is_dataclass(cls) else {}


@functools.cache
def docs_of(cls: type) -> Mapping[str, str]:
    """Return field -> docstring of a dataclass or `TypedDict`, those of its base classes included."""
    found: dict[str, str] = {}
    for base in cls.__bases__:
        found |= docs_of(base) if base.__module__ == cls.__module__ else {}
    (body,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(body, ast.ClassDef)
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[ast.unparse(field.target)] = inspect.cleandoc(str(text.value.value)).replace("\n", " ")
    return found


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
    annotation, mark = unmarked(annotation)
    origin = get_origin(annotation) or annotation
    if annotation in (Texts, Sequence[str]):
        return _texts(annotation, value, where)
    if annotation == Schedulable:
        return _schedule(mark or Range(), value, where)
    if origin in (Union, types.UnionType):
        return _any_of(get_args(annotation), value, where)
    if origin in (str, Literal):
        return _word(get_args(annotation), mark, value, where)
    if origin is tuple:
        if isinstance(value, list | tuple) and len(value) == 2:
            return [_number(mark or Range(), number, where) for number in value]
        raise BadValue(f"{where} must be two numbers such as [0.1, 0.9], got {shown(value)}")
    if origin is Mapping or is_typeddict(origin):
        return _mapping(origin, value, where)
    if origin is bool:
        if isinstance(value, bool):
            return value
        raise BadValue(f"{where} must be true or false, got {shown(value)}")
    number = _number(mark or Range(), value, where)
    if origin is int and number != int(number):
        raise BadValue(f"{where} must be a whole number, got {shown(value)}")
    return int(number) if origin is int else number


def unmarked(annotation: Any) -> tuple[Any, Any]:
    """Return the type of an `Annotated` and its `Range` or `Pattern`; None where it has none."""
    return get_args(annotation)[:2] if get_origin(annotation) is Annotated else (annotation, None)


def _any_of(options: tuple[Any, ...], value: object, where: str) -> Any:
    """Check against one of: None, a word, or the type that is left."""
    words = [word for option in options if get_origin(option) is Literal for word in get_args(option)]
    if (value is None and types.NoneType in options) or (isinstance(value, str) and value in words):
        return value
    kinds = [option for option in options if option is not types.NoneType]
    rest = [kind for kind in kinds if get_origin(kind) is not Literal] or kinds
    return check_value(functools.reduce(operator.or_, rest), value, where)


def _texts(annotation: Any, value: object, where: str) -> str | list[str]:
    """`Texts`: one or several; a sequence: none, too."""
    one = annotation == Texts
    if one and isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and (value or not one) and all(isinstance(text, str) for text in value):
        return list(value)
    raise BadValue(f"{where} must be {'text or ' if one else ''}a list of texts, got {shown(value)}")


def _word(choices: tuple[str, ...], pattern: Pattern | None, value: object, where: str) -> str:
    if not isinstance(value, str):
        raise BadValue(f"{where} must be a word, got {shown(value)}")
    if pattern and not re.fullmatch(pattern.regex, value, re.ASCII):
        raise BadValue(f"{where} must be {pattern.words}, got {shown(value)}")
    if choices and value not in choices:
        raise unknown_name(f"choice ({where})", value, choices)
    return value


def _mapping(kind: type, value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise BadValue(f"{where} must be a mapping such as {{name: value}}, got {shown(value)}")
    return check_fields(annotations_of(kind), value, where) if is_typeddict(kind) else dict(value)


def _schedule(limits: Range, value: object, where: str) -> float | dict[str, Any]:
    """Return a number, or a mapping with its numbers checked: a mapping is what a run's configuration can hold."""
    if not isinstance(value, Mapping):
        return _number(limits, value, where, "a number or a schedule such as {schedule: linear, start: 3.0e-4}")
    shape = value.get("schedule")
    if not isinstance(shape, str) or shape not in SHAPES:
        raise unknown_name(f"schedule ({where})", shape, SHAPES)
    known = ("schedule", "start") if shape == "constant" else ("schedule", "start", "end")
    for key in value:
        if key not in known:
            raise unknown_name(f"setting of a {shape} schedule ({where})", str(key), known)
    if "start" not in value:
        raise BadValue(f"{where}: a {shape} schedule needs 'start', got {shown(dict(value))}")
    return {
        key: number if key == "schedule" else _number(limits, number, f"{where}.{key}") for key, number in value.items()
    }


def _number(limits: Range, value: object, where: str, kind: str = "a number") -> float:
    # YAML 1.1 reads 3e-4 (no dot) as text; a number was meant.
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise BadValue(f"{where} must be {kind}, got {shown(value)}")
    for wrong, bound in (
        (number <= limits.above, f"above {limits.above:g}"),
        (number >= limits.below, f"below {limits.below:g}"),
        (number < limits.low, f"at least {limits.low:g}"),
        (number > limits.high, f"at most {limits.high:.12g}"),
    ):
        if wrong:
            raise BadValue(f"{where} must be {bound}, got {shown(value)}")
    return number


def yaml_line(value: object) -> str:
    """Return `value` in YAML, on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.removesuffix("...\n").rstrip("\n")
