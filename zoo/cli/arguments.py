"""Command-line grammar: a parser with errors of one line, and flags from configs' fields. Imports nothing heavy."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from vla_gym import __version__
from vla_gym.errors import MOST_SHOWN, BadValue, VLAZooError, shortened, shown
from zoo.config.algorithm_configs import ALGORITHMS
from zoo.config.run_config import ENV_OPTIONS, known_settings
from zoo.config.settings import (
    ALIASES,
    Count,
    CountOrZero,
    Options,
    Positive,
    Processes,
    Range,
    Seed,
    Settings,
    annotations_of,
    check_value,
    defaults_of,
    docs_of,
    unmarked,
    yaml_line,
)
from zoo.yaml_text import parse_yaml

DEFAULT_NUM_ENVS = 4
"""Environments of a policy that does not train."""
VERSION_TEXT = f"vla-zoo {__version__}"
RUN_ALGORITHMS = (*ALGORITHMS, "sft")
"""Folders of runs that hold an agent."""
_ELSEWHERE = {
    "hyperparams": "give -params, which takes the same key:value pairs",
    "env-kwargs": "give -params, with options of the benchmark's own inside of env_kwargs",
    "trained-agent": "give -i RUN, which goes on with it, or --policy RUN, a new run from its policy",
    "total-timesteps": "give -n STEPS",
    "n-envs": "give --num-envs N",
    "n-eval-episodes": "give --eval-episodes N",
    "vec-env": "give --num-envs N, whose simulators have processes of their own where they need them",
    "optimize": "call vla-zoo optimize",
    "optimize-hyperparameters": "call vla-zoo optimize",
    "verbose": "every update is a line, leave it out",
    "log-interval": "every update is logged, leave it out",
    "uuid": "run folders are numbered, leave it out",
}
"""Flag of rl_zoo3 or Stable-Baselines3's examples, without dashes -> what stands here in its place."""
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "doctor": (
        "vla-zoo doctor",
        "vla-zoo doctor --env MetaWorld/reach",
        "vla-zoo doctor --oracle --env LIBERO-Object --episodes 10",
    ),
    "train": (
        "vla-zoo train --env Toy-Reach",
        "vla-zoo train --algo grpo --env LIBERO-Goal -n 200000 -params learning_rate:1e-5 image_size:128",
        "vla-zoo train --algo qc --env MetaWorld/window-close -n 20000",
        "vla-zoo train -i logs/ppo/Toy-Reach_1 -n 300000",
    ),
    "collect": (
        "vla-zoo collect --env MetaWorld/window-close --expert -n 5 -o demos/window-close",
        "vla-zoo collect -i logs/ppo/MetaWorld-window-close_1 --keep-failures -n 100 -o rollouts",
    ),
    "sft": (
        "vla-zoo sft --env MetaWorld/window-close --dataset demos/window-close -n 50",
        "vla-zoo sft --env LIBERO-Goal --dataset demos/goal --policy smolvla --micro-batch-size 8",
        "vla-zoo sft -i logs/sft/MetaWorld-window-close_1",
    ),
    "envs": ("vla-zoo envs", "vla-zoo envs libero-goal"),
    "runs": ("vla-zoo runs", "vla-zoo runs -f /shared/logs"),
    "published": (
        "vla-zoo published",
        "vla-zoo published libero-130-grpo",
        "vla-zoo published --submit results_libero-130-grpo.json",
    ),
    "plan": (
        "vla-zoo plan --env LIBERO-Spatial --policy openvla-oft --gpu-memory 24",
        "vla-zoo plan --algo grpo --env LIBERO-Spatial --policy openvla-oft --ranks 8 --fsdp --gpu h100",
    ),
    "evaluate": (
        "vla-zoo evaluate -i logs/ppo/Toy-Reach_1 --video",
        "vla-zoo evaluate --env LIBERO-Goal --policy agents/sft/LIBERO-Goal --episodes 50",
        "vla-zoo evaluate --published libero-oft-base --env LIBERO-Spatial",
    ),
    "compare": (
        "vla-zoo compare logs/sft/MetaWorld-window-close_1 logs/ppo/MetaWorld-window-close_1",
        "vla-zoo compare --before sft.json --after ppo.json",
    ),
    "enjoy": ("vla-zoo enjoy -i agents/sft/LIBERO-Goal", "vla-zoo enjoy --env Toy-Reach -o episodes.mp4"),
    "play": ("vla-zoo play -i agents/sft/LIBERO-Goal", "vla-zoo play -i logs/ppo/Toy-Reach_1 --port 7861"),
    "record_video": ("vla-zoo record_video -i logs/ppo/Toy-Reach_1 --episodes 4",),
    "serve": ("vla-zoo serve -i agents/sft/LIBERO-Goal --port 8000",),
    "optimize": (
        "vla-zoo optimize --algo grpo --env Toy-Reach -n 40000 --n-trials 20",
        "vla-zoo optimize --env Toy-Reach -n 20000 --space space.yml -- --num-envs 32",
    ),
    "plot": ("vla-zoo plot -e Toy-Reach -a ppo grpo", "vla-zoo plot logs/ppo/Toy-Reach_1 logs/ppo/Toy-Reach_2"),
    "report": ("vla-zoo report -i logs/ppo/Toy-Reach_1",),
    "completion": ("vla-zoo completion bash",),
    "push_to_hub": ("vla-zoo push_to_hub -i logs/ppo/Toy-Reach_1 me/toy-reach --public",),
    "load_from_hub": ("vla-zoo load_from_hub me/toy-reach",),
}
"""Command -> its examples, for `--help` and the command pages; a test parses them."""


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

    def format_help(self) -> str:
        """Return argparse's text, and the command's examples."""
        lines = EXAMPLES.get(self.prog.removeprefix("vla-zoo "), ())
        return super().format_help() + "".join(["\nexamples:\n", *(f"  {line}\n" for line in lines)] if lines else "")

    def error(self, message: str) -> NoReturn:
        raise BadValue(f"{message} ({self.prog} --help lists all options)")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse all of `argv`; raises `BadValue` for anything that is no option, no text, or empty."""
        for token in argv:
            if "\0" in token or any("\ud800" <= char <= "\udfff" for char in token):
                self.error(f"{shown(token)} is no UTF-8 text; rename it")
        args, extra = self.parse_known_args(list(argv))
        for action in self._actions:
            given = getattr(args, action.dest, None)
            if given == "" or (isinstance(given, list) and "" in given):
                self.error(f"{'/'.join(action.option_strings) or action.metavar} must not be empty")
        if extra:
            self.error(f"unknown argument {shown(extra[0])}{self._hint(extra[0].split('=')[0][:MOST_SHOWN])}")
        return args

    def _hint(self, wrong: str) -> str:
        flags = [flag for action in self._actions for flag in action.option_strings]
        name = wrong.lstrip("-")
        if "--no-render" in flags and name in ("render", "render-mode", "headless", "video"):
            return ": a window opens where there is a display, else the episodes become an mp4; -o FILE writes one"
        if "-params" in flags and (instead := _ELSEWHERE.get(name)):
            return f": {instead}"
        if "-params" in flags:
            setting = ALIASES.get(name.replace("-", "_"), name.replace("-", "_"))
            if setting in (known_settings("ppo") if "--resume" in flags else ENV_OPTIONS):
                return f": give -params {setting}:VALUE"
        near = difflib.get_close_matches(wrong, flags, n=1)
        return f", did you mean '{near[0]}'?" if near else ""


def value_of(annotation: Any) -> Callable[[str], Any]:
    """Return an argument type: the values of a setting with this annotation."""

    def parse(text: str) -> Any:
        try:
            return check_value(annotation, text, "")
        except VLAZooError as error:
            raise argparse.ArgumentTypeError(str(error).strip()) from error

    return parse


count, count_or_zero = value_of(Count), value_of(CountOrZero)
"""Steps, episodes, updates."""
processes, seed, positive = value_of(Processes), value_of(Seed), value_of(Positive)
share = value_of(Annotated[float, Range(above=0, high=1)])
"""A part of something, not none of it."""


def add_fields(
    parser: argparse.ArgumentParser, record: type, *names: str, **overrides: Mapping[str, str | Sequence[str]]
) -> None:
    """Add a flag for each of these fields of a config, by default for all: its type, range and help are the field's.

    The value of a flag that is not given is None. `overrides`: field -> "flags" (its spellings), "default" (in words,
    where it is not the field's own), "help" (in place of the docstring), "metavar".
    """
    annotations, docs, defaults = annotations_of(record), docs_of(record), defaults_of(record)
    for name in names or annotations:
        own = overrides.get(name, {})
        text, _, none = _help(docs[name]).partition("; none: ")
        text = str(own.get("help") or text)
        default = own.get("default") or none or ("" if defaults.get(name) in (None, False, "") else defaults[name])
        options = _flag_options(annotations[name])
        if "metavar" in own:
            options["metavar"] = own["metavar"]
        parser.add_argument(
            *own.get("flags", [flag_of(name)]),
            dest=name,
            help=(f"{text} (default: {default})" if default else text).replace("%", "%%"),
            **options,
        )


def _help(doc: str) -> str:
    """Return the first sentence of a docstring as help; its default stands behind "; none: "."""
    sentence = re.split(r"(?<!e\.g)\.(?:\s|$)", doc)[0]
    return sentence[0].lower() + sentence[1:] if sentence.split()[0][1:].islower() else sentence


def _flag_options(annotation: Any) -> Settings:
    """Return how argparse reads a value: whether there are several, their type, and their name in the help."""
    kind = unmarked(annotation)[0]
    kinds = [unmarked(one)[0] for one in get_args(kind)] if get_origin(kind) in (Union, UnionType) else [kind]
    if bool in kinds:
        return {"action": "store_true", "default": None}
    if Sequence[str] in kinds:
        return {"nargs": "+", "metavar": "NAME"}
    if Options in kinds and float not in kinds:
        return {"nargs": "+", "metavar": "KEY:VALUE"}
    words = [word for one in kinds if get_origin(one) is Literal for word in get_args(one)]
    letter = "N" if int in kinds else "X" if float in kinds else "NAME"
    metavar = f"{{{','.join(words)}}}" if words and letter == "NAME" else letter
    return {"type": value_of(annotation), "metavar": metavar}


def key_values(pairs: Sequence[str], flag: str = "-params") -> Settings:
    """Read `["learning_rate:3e-4", "policy_kwargs:{temperature: 0.8}"]`; values are YAML, never code.

    Raises `BadValue` for a pair without a colon, an empty key, a key that is given twice, or a value that is no YAML.
    """
    values: Settings = {}
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


def as_pairs(values: Mapping[str, object]) -> list[str]:
    """Inverse of `key_values`."""
    return [f"{name}:{yaml_line(value)}" for name, value in values.items()]


def flag_of(name: str) -> str:
    """Return the long flag that argparse stores under `name`."""
    return f"--{name.replace('_', '-')}"


def is_given(args: argparse.Namespace, name: str) -> bool:
    """Whether a flag was given, 0 included; `name` is that which argparse stores it under."""
    value = getattr(args, name)
    return value is not None and value is not False
