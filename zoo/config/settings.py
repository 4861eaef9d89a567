"""Settings as typed fields: annotations, defaults, docstrings, and the check of a value. Imports nothing heavy."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import operator
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import yaml

from vla_gym.errors import BadValue, UnknownName, shown, unknown_name
from vla_gym.registry import list_envs, option_names
from vla_gym.specs import LONGEST_WAIT


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
Options = Mapping[str, Any]
"""Settings by name, to read; what a value is, its annotation in a config says."""
Settings = dict[str, Any]
"""Settings by name."""
Schedulable = float | Options
"""A number, or a schedule's mapping such as `{schedule: linear, start: 3.0e-4, end: 0.0}`."""
Shape = Literal["constant", "linear", "cosine"]
SHAPES: Mapping[Shape, Callable[[float], float]] = {
    "constant": lambda progress_remaining: 1.0,
    "linear": lambda progress_remaining: progress_remaining,
    "cosine": lambda progress_remaining: 0.5 * (1.0 - math.cos(math.pi * progress_remaining)),
}
"""Shape of a schedule -> weight of `start` against `end`, by the remaining progress: 1 at the start of training and 0
at its end, which is Stable-Baselines3's convention."""


@dataclass(frozen=True, kw_only=True)
class ValueSchedule:
    """A value that changes with the remaining progress."""

    shape: Shape
    start: float
    """Value at the start of training."""
    end: float = 0.0
    """Value at its end; unused by a constant."""

    def __call__(self, progress_remaining: float) -> float:
        return self.end + (self.start - self.end) * SHAPES[self.shape](progress_remaining)


def build_schedule(value: object) -> Any:
    """Return a schedule's mapping, checked by `check_value`, as a `ValueSchedule`, and anything else as it is."""
    if not isinstance(value, Mapping):
        return value
    return ValueSchedule(shape=value["schedule"], **{name: value[name] for name in ("start", "end") if name in value})


Texts = str | Sequence[str]
"""A text, or several."""
Parts = str | Options | Sequence[str | Options]
"""Classes of the user's as rl_zoo3 writes them: "module.Class", or {"module.Class": {argument: value}}, or several."""

ANYTIME: Mapping[str, object] = {"anytime": True}
"""Metadata of a config's field that may change when a run goes on."""
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


def annotations_of(cls: type) -> Options:
    """Return field -> annotation of a dataclass or `TypedDict`."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in fields(cls)} if is_dataclass(cls) else hints


def defaults_of(cls: type) -> Options:
    """Return field -> default of a dataclass, fields without one left out; a `TypedDict` has none."""
    return {f.name: f.default for f in fields(cls) if f.default is not MISSING} if is_dataclass(cls) else {}


def anytime_of(cls: type) -> list[str]:
    """Return the fields of a dataclass that may change when a run goes on."""
    return [f.name for f in fields(cls) if "anytime" in f.metadata]


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


def check_fields(known: Mapping[str, object], values: Mapping[str, object], where: str) -> Settings:
    """Return the values as the annotations in `known` have them; `where` starts the error message.

    Raises `UnknownName` for a name that is not known and `BadValue` for a value of another kind.
    """
    checked: Settings = {}
    for name, value in values.items():
        if name not in known:
            raise unknown_setting(known, str(name), where)
        checked[name] = check_value(known[name], value, f"{where}: {name}")
    return checked


def unknown_setting(known: Collection[str], name: str, where: str) -> UnknownName:
    """Return the error; another project's name of a setting, or a benchmark's option, is nearer than a spelling."""
    alias = ALIASES.get(name.casefold())
    meant = alias if alias in known else None
    if meant is None and "env_kwargs" in known and any(name in option_names(env) for env in list_envs()):
        meant = f"env_kwargs:{{{name}: ...}}"
    return unknown_name(f"setting ({where})", name, known, show=40, meant=meant)


def check_value(annotation: object, value: object, where: str) -> Any:
    """Return `value` as the annotation has it: an `int` for 1e6, a pair as a list; raises like `check_fields`."""
    kind, mark = unmarked(annotation)
    origin = get_origin(kind) or kind
    limits = mark if isinstance(mark, Range) else Range()
    if kind == Schedulable:
        return _schedule(limits, value, where)
    if kind not in _KINDS and origin in (Union, types.UnionType):
        return _any_of(get_args(kind), value, where)
    family = Mapping if is_typeddict(origin) else origin
    found = _KINDS.get(kind) or _KINDS.get(family)
    if found is None:
        number = _number(limits, value, where, whole=origin is int)
        return int(number) if origin is int else number
    fits, words = found
    if not fits(value):
        raise BadValue(f"{where} must be {words}, got {shown(value)}")
    if origin in (str, Literal):
        return _word(get_args(kind), mark, str(value), where)
    if isinstance(value, Mapping):
        return check_fields(annotations_of(origin), value, where) if is_typeddict(origin) else dict(value)
    if isinstance(value, list | tuple):
        return [_number(limits, one, where) for one in value] if origin is tuple else list(value)
    return value


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)


def _are_parts(value: object) -> bool:
    parts = value if isinstance(value, list | tuple) else [value]
    named = [part if isinstance(part, Mapping) else {part: {}} for part in parts if isinstance(part, str | Mapping)]
    return len(named) == len(parts) and all(
        isinstance(name, str) and re.fullmatch(r"\w+(\.\w+)+", name) and isinstance(arguments, Mapping)
        for one in named
        for name, arguments in one.items()
    )


_KINDS: Mapping[object, tuple[Callable[[Any], bool], str]] = {
    bool: (lambda value: isinstance(value, bool), "true or false"),
    str: (lambda value: isinstance(value, str), "a word"),
    Literal: (lambda value: isinstance(value, str), "a word"),
    tuple: (lambda value: isinstance(value, list | tuple) and len(value) == 2, "two numbers such as [0.1, 0.9]"),
    Texts: (lambda value: isinstance(value, str) or (bool(value) and _are_texts(value)), "text or a list of texts"),
    Sequence[str]: (_are_texts, "a list of texts"),
    Parts: (_are_parts, "a class such as my_rewards.Closer, {my_rewards.Closer: {scale: 2.0}}, or a list of such"),
    Mapping: (
        lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value),
        "a mapping such as {name: value}",
    ),
}
"""Type, or the origin of one, that is no number -> whether a value is of it, and what it must be in words."""


def unmarked(annotation: object) -> tuple[Any, Any]:
    """Return the type of an `Annotated` and its `Range` or `Pattern`; None where it has none."""
    return get_args(annotation)[:2] if get_origin(annotation) is Annotated else (annotation, None)


def _any_of(options: tuple[object, ...], value: object, where: str) -> Any:
    words = [word for option in options if get_origin(option) is Literal for word in get_args(option)]
    if (value is None and types.NoneType in options) or (isinstance(value, str) and value in words):
        return value
    kinds = [option for option in options if option is not types.NoneType]
    rest = [kind for kind in kinds if get_origin(kind) is not Literal] or kinds
    return check_value(functools.reduce(operator.or_, rest), value, where)


def _word(choices: tuple[str, ...], pattern: Pattern | None, word: str, where: str) -> str:
    if pattern and not re.fullmatch(pattern.regex, word, re.ASCII):
        raise BadValue(f"{where} must be {pattern.words}, got {shown(word)}")
    if choices and word not in choices:
        raise unknown_name(f"choice ({where})", word, choices)
    return word


def _schedule(limits: Range, value: object, where: str) -> float | Settings:
    """Return a number, or a mapping with its numbers checked: a mapping is what a run's configuration can hold."""
    if not isinstance(value, Mapping):
        return _number(limits, value, where, "a number or a schedule such as {schedule: linear, start: 3.0e-4}")
    known = {"schedule": Shape, "start": Annotated[float, limits], "end": Annotated[float, limits]}
    if value.get("schedule") == "constant":
        del known["end"]
    checked = check_fields(known, value, where)
    if lacking := {"schedule", "start"} - checked.keys():
        raise BadValue(f"{where}: a schedule needs '{lacking.pop()}', got {shown(dict(value))}")
    return checked


def _number(limits: Range, value: object, where: str, kind: str = "a number", *, whole: bool = False) -> float:
    # YAML 1.1 reads 3e-4 (no dot) as text; a number was meant.
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    for wrong, wanted in (
        (not math.isfinite(number), kind),
        (number <= limits.above, f"above {limits.above:g}"),
        (number >= limits.below, f"below {limits.below:g}"),
        (number < limits.low, f"at least {limits.low:g}"),
        (number > limits.high, f"at most {limits.high:.12g}"),
        (whole and number % 1, "a whole number"),
    ):
        if wrong:
            raise BadValue(f"{where} must be {wanted}, got {shown(value)}")
    return number


def yaml_line(value: object) -> str:
    """Return `value` in YAML, on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.removesuffix("...\n").rstrip("\n")
