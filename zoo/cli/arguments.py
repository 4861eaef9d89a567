"""Command-line grammar: a parser with errors of one line, and the types of arguments. Imports nothing heavy."""

from __future__ import annotations

import argparse
import difflib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, get_args

from vla_gym import __version__
from vla_gym.errors import MOST_SHOWN, BadValue, shortened, shown, unknown_name
from vla_gym.workers.pool import OnWorkerError
from zoo.config.algorithm_configs import ALGORITHMS
from zoo.config.run_config import DEVICE, LARGEST_SEED
from zoo.config.settings import LARGEST_COUNT, MOST_PROCESSES, yaml_line
from zoo.yaml_text import parse_yaml

DEFAULT_NUM_ENVS = 4
"""Environments of a policy that does not train."""
VERSION_TEXT = f"vla-zoo {__version__}"
RUN_ALGORITHMS = (*ALGORITHMS, "sft")
"""Folders of runs that hold an agent."""
_OF_RL_ZOO3 = {
    "hyperparams": "-params, which takes the same key:value pairs",
    "env-kwargs": "-params, with options of the benchmark's own inside of env_kwargs",
    "trained-agent": "-i RUN, which goes on with it, or --policy RUN, a new run from its policy",
    "vec-env": "--num-envs N, whose simulators have processes of their own where they need them",
    "optimize": "python -m zoo.optimize",
    "optimize-hyperparameters": "python -m zoo.optimize",
}
"""Flag of rl_zoo3, without dashes -> what stands here in its place."""
_NEEDLESS = {
    "verbose": "every update is a line",
    "log-interval": "every update is logged",
    "uuid": "run folders are numbered",
}
"""Flag of rl_zoo3, without dashes -> why nothing stands in its place."""


class OneLineParser(argparse.ArgumentParser):
    """An `ArgumentParser` whose complaints are `BadValue`s of one line, with the nearest flag."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)
        self.add_argument("--version", action="version", version=VERSION_TEXT)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """As argparse's, but a flag of several values that is given twice has the values of both."""
        if options.get("nargs") == "+":
            options.setdefault("action", "extend")
        return super().add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        raise BadValue(f"{message} ({self.prog} --help lists all options)")

    def _print_message(self, message: str, file: Any = None) -> None:
        # Argparse's own drops what cannot be written in silence.
        (file or sys.stdout).write(message)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse all of `argv`; raises `BadValue` for anything that is no option, no text, or empty."""
        for token in argv:
            if "\0" in token or not _is_text(token):
                self.error(f"{shown(token)} is no UTF-8 text; rename it")
            if token.startswith("-") and token.endswith("=--"):
                self.error(f"{token.removesuffix('=--')} needs a value, got '--'")
        args, extra = self.parse_known_args(list(argv))
        for action in self._actions:
            given = getattr(args, action.dest, None)
            if given == "" or (given == [] and action.nargs is None) or (isinstance(given, list) and "" in given):
                self.error(f"{'/'.join(action.option_strings) or action.metavar} must not be empty")
        if extra:
            flags = [flag for action in self._actions for flag in action.option_strings]
            wrong = extra[0].split("=")[0][:MOST_SHOWN]
            near = difflib.get_close_matches(wrong, flags, n=1)
            meant = f"'{near[0]}'" if near else None
            if "-params" in flags:
                name = wrong.lstrip("-")
                if name in _NEEDLESS:
                    self.error(f"unknown argument {shown(extra[0])}: {_NEEDLESS[name]}, leave it out")
                meant = _OF_RL_ZOO3.get(name, meant)
            self.error(f"unknown argument {shown(extra[0])}" + (f", did you mean {meant}?" if meant else ""))
        return args


def _is_text(token: str) -> bool:
    """Whether the argument was UTF-8: bytes that were not stand in it as lone surrogates."""
    try:
        token.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def whole_number(text: str) -> int:
    """Return an integer, also written 1e6 or 10_000; raises `argparse.ArgumentTypeError`."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number != int(number):
        raise argparse.ArgumentTypeError(f"must be a whole number, got {shown(text)}")
    return int(number)


def integer_in(low: int, high: int) -> Callable[[str], int]:
    """Return an argument type: whole numbers in `low` .. `high`."""

    def parse(text: str) -> int:
        value = whole_number(text)
        if value < low:
            wanted = f"in {low} .. {high}" if high == LARGEST_SEED else "0 or more" if low == 0 else f"at least {low}"
            raise argparse.ArgumentTypeError(f"must be {wanted}, got {shortened(text, MOST_SHOWN)}")
        if value > high:
            raise argparse.ArgumentTypeError(f"must be in {low} .. {high}, got {shortened(text, MOST_SHOWN)}")
        return value

    return parse


count, count_or_zero = integer_in(1, LARGEST_COUNT), integer_in(0, LARGEST_COUNT)
"""Steps, episodes, updates."""
processes, threads = integer_in(1, MOST_PROCESSES), integer_in(1, 4096)
"""Simulators or ranks; CPU threads."""
frames = integer_in(1, 2**20)
"""Frames of demonstrations in memory together."""
seed = integer_in(0, LARGEST_SEED)
"""A seed that numpy and torch both take."""


def device(text: str) -> str:
    """Return the name of a torch device that commands know; whether this machine has it is asked later."""
    if not DEVICE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"no device {shown(text)}. Allowed: auto, cpu, cuda, cuda:<index>")
    return text


def number(allowed: Callable[[float], bool], wanted: str) -> Callable[[str], float]:
    """Return an argument type: numbers that are `allowed`, `wanted` in words."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not allowed(value):
            raise argparse.ArgumentTypeError(f"must be {wanted}, got {shown(text)}")
        return value

    return parse


def worker_error(text: str) -> str:
    """Return one of the two ways to meet a failed worker."""
    if text not in get_args(OnWorkerError):
        raise argparse.ArgumentTypeError(str(unknown_name("way", text, get_args(OnWorkerError))))
    return text


PIPELINE_WORDS: dict[str, int | str] = {"off": 1, "on": 2, "auto": "auto"}
"""Word -> number of stages."""


def pipeline_stages(text: str) -> int | str:
    """Return a number of stages >= 1, or of off (1), on (2), auto."""
    if text in PIPELINE_WORDS:
        return PIPELINE_WORDS[text]
    try:
        return count(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; or one of {', '.join(PIPELINE_WORDS)}") from error


def key_values(pairs: Sequence[str], flag: str = "-params") -> dict[str, Any]:
    """Read `["learning_rate:3e-4", "policy_kwargs:{temperature: 0.8}"]`; values are YAML, never code.

    Raises `BadValue` for a pair without a colon, an empty key, a key that is given twice, or a value that is no YAML.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, colon, text = pair.partition(":")
        if not colon or not key.strip():
            example = ". Example: -params chunk:8 image_size:64" if flag == "-params" else ""
            raise BadValue(f"{flag} wants key:value, got {shown(pair)}{example}")
        name = shortened(key.strip(), MOST_SHOWN)
        if key.strip() in values:
            raise BadValue(f"{flag} {name} is given twice, the second time as {shown(text)}; leave one out")
        values[key.strip()] = parse_yaml(text, f"{flag} {name}: cannot read the value {shown(text)}, it")
    return values


def as_pairs(values: Mapping[str, Any]) -> list[str]:
    """Inverse of `key_values`."""
    return [f"{name}:{yaml_line(value)}" for name, value in values.items()]


def flag_of(name: str) -> str:
    """Return the long flag that argparse stores under `name`."""
    return f"--{name.replace('_', '-')}"


def is_given(args: argparse.Namespace, name: str) -> bool:
    """Whether a flag was given, 0 included; `name` is that which argparse stores it under."""
    value = getattr(args, name)
    return value is not None and value is not False
