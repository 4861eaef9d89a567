"""Command-line grammar: rl_zoo3's flags, without its `eval`, each written once. Imports nothing heavy."""

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
    "trained-agent": "-i",
    "vec-env": "--num-envs N, whose simulators have processes of their own where they need them",
    "optimize": "python -m zoo.optimize",
    "optimize-hyperparameters": "python -m zoo.optimize",
}
"""Flag of rl_zoo3, without dashes -> what stands here in its place."""


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
                meant = _OF_RL_ZOO3.get(wrong.lstrip("-"), meant)
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


_temperature = number(lambda value: 0.0 < value < math.inf, "a number above 0, e.g. 1.6")


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


# Flags of several commands ---------------------------------------------------------------------------


def add_gym_packages_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--gym-packages`, as in rl_zoo3."""
    parser.add_argument(
        "--gym-packages",
        nargs="+",
        default=[],
        metavar="MODULE",
        help="modules to import first: they call vla_gym.register_benchmark",
    )


def add_params_argument(parser: argparse.ArgumentParser, text: str) -> None:
    """Add `-params`, to be read with `key_values`."""
    parser.add_argument("-params", "--params", nargs="+", default=[], metavar="KEY:VALUE", help=text)


def add_progress_argument(parser: argparse.ArgumentParser) -> None:
    """Add `-P`; None where it was not given."""
    parser.add_argument(
        "-P",
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="progress bar with time left (default: on a terminal)",
    )


def add_device_arguments(parser: argparse.ArgumentParser, *, default: str | None) -> None:
    """Add `--device` and `--num-threads`; `default` None leaves the device to the run."""
    parser.add_argument(
        "--device",
        type=device,
        default=default,
        metavar="D",
        help="torch device: auto, cpu, cuda, cuda:1 (default: auto)",
    )
    parser.add_argument("--num-threads", type=threads, metavar="N", help="torch CPU threads (default: torch's choice)")


def add_worker_error_argument(parser: argparse.ArgumentParser, *, default: str | None, restart: str) -> None:
    """Add `--on-worker-error`; `restart` describes that choice, `default` None leaves it to the run."""
    parser.add_argument(
        "--on-worker-error",
        type=worker_error,
        default=default,
        metavar="{raise,restart}",
        help=f"a simulator that dies, hangs or raises ends the command, or: {restart} "
        f"(default: {default or 'restart'})",
    )


def add_new_run_arguments(
    parser: argparse.ArgumentParser,
    *,
    steps: str,
    eval_default: str,
    save_default: str,
    num_envs: str,
    params: str,
    recipes: str,
    resume: str,
) -> None:
    """Add the flags that `zoo.train` and `zoo.sft` share; `steps` is their unit, the others are help texts."""
    parser.add_argument("--policy", metavar="NAME", help="family, checkpoint or run folder, or Hub id (default: nano)")
    parser.add_argument("--num-envs", type=processes, metavar="N", help=num_envs)
    parser.add_argument("--seed", type=seed, metavar="S", help="seed of everything (default: drawn and stored)")
    parser.add_argument("-f", "--log-folder", metavar="DIR", help="where run folders go (default: logs)")
    parser.add_argument("-i", "--resume", metavar="RUN", help=resume)
    add_params_argument(parser, params)
    parser.add_argument("-conf", "--conf-file", metavar="FILE", help=f"YAML file instead of the packaged {recipes}")
    parser.add_argument(
        "--eval-freq",
        type=count_or_zero,
        metavar=steps.upper(),
        help=f"{steps} between evaluations; {eval_default}",
    )
    parser.add_argument("--eval-episodes", type=count_or_zero, metavar="N", help="start states evaluated; 0: none")
    _add_evaluation_arguments(parser)
    parser.add_argument(
        "--eval-tasks",
        nargs="+",
        metavar="ID",
        help="evaluate on those tasks of --env that these environments have, e.g. LIBERO-Object LIBERO-Goal "
        "(default: on all of them)",
    )
    parser.add_argument(
        "--save-freq",
        type=count_or_zero,
        metavar=steps.upper(),
        help=f"{steps} between checkpoints; {save_default}",
    )
    add_device_arguments(parser, default=None)
    add_gym_packages_argument(parser)


def _add_evaluation_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the settings `zoo.config.evaluation_options.EvalOptions` of evaluations during training."""
    parser.add_argument("--eval-env", metavar="ID", help="evaluate there, e.g. on held-out tasks (default: --env)")
    parser.add_argument("--eval-split", metavar="NAME", help="start states of another split, e.g. test")
    parser.add_argument(
        "--eval-env-kwargs",
        nargs="+",
        metavar="KEY:VALUE",
        help="the benchmark's options in evaluations, over the run's, e.g. protocol:lerobot",
    )
    parser.add_argument(
        "--eval-stochastic", action="store_true", default=None, help="sample actions in evaluations, too"
    )
    parser.add_argument("--eval-temperature", type=_temperature, metavar="T", help="sample there at this temperature")
    parser.add_argument(
        "--eval-top-k", type=count_or_zero, metavar="K", help="sample there among the K likeliest tokens"
    )
    parser.add_argument(
        "--eval-rounds", type=count, metavar="N", help="episodes of every start state, with other noise"
    )


def add_policy_arguments(parser: argparse.ArgumentParser, *, default_split: str = "as trained") -> None:
    """Add the selectors of every command that rolls a policy out."""
    parser.add_argument("--env", metavar="ID", help="environment id, e.g. LIBERO-Spatial or LIBERO-Spatial/3")
    parser.add_argument(
        "-i",
        "--run",
        metavar="RUN",
        help="run folder, best/ or checkpoints/step_<n>/ folder, or the Hub id of a run",
    )
    parser.add_argument(
        "--policy", metavar="NAME", help="family name, folder, or ws://HOST:PORT of a policy server, instead of -i"
    )
    parser.add_argument("--token-file", metavar="FILE", help="what the policy server asks its clients for")
    parser.add_argument(
        "--server-conf", metavar="FILE", help="YAML about a policy server: protocol, names, timeout, policy"
    )
    parser.add_argument(
        "--unnorm-key",
        metavar="KEY",
        help="data set whose action statistics a published checkpoint is to use",
    )
    parser.add_argument(
        "--split", metavar="NAME", help=f"start states of another split, e.g. test (default: {default_split})"
    )
    add_params_argument(
        parser,
        "environment settings over the run's or the recipe's, and how the policy is opened, e.g. "
        "'env_kwargs:{protocol: lerobot}' 'policy_kwargs:{backbone_kwargs: {head: tokens}}'",
    )
    add_gym_packages_argument(parser)
    parser.add_argument(
        "--num-envs", type=processes, metavar="N", help=f"simulators side by side (default: {DEFAULT_NUM_ENVS})"
    )
    add_device_arguments(parser, default="auto")
    parser.add_argument("--seed", type=seed, default=0, help="seed of sampled actions (default: 0)")
    _add_decoding_arguments(parser)
    parser.add_argument(
        "--instructions",
        metavar="FILE",
        help="YAML file with other words for some tasks, {task name: instruction}",
    )
    add_worker_error_argument(parser, default="raise", restart="start it anew and run its episodes again")
    add_progress_argument(parser)


def _add_decoding_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument("--stochastic", action="store_true", help="sample actions instead of deterministic ones")
    actions.add_argument(
        "--deterministic", action="store_true", help="the policy's own deterministic actions (the default)"
    )
    parser.add_argument(
        "--temperature",
        type=_temperature,
        metavar="T",
        help="sample action tokens at this temperature (default: the policy's own)",
    )
    parser.add_argument(
        "--top-k", type=count_or_zero, metavar="K", help="sample among the K likeliest tokens only, 0: all"
    )
    parser.add_argument(
        "--rounds", type=count, metavar="N", help="play every start state N times, each with other noise (default: 1)"
    )


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add rl_zoo3's selectors of a run and its checkpoint; see `zoo.cli.agent.chosen_run`."""
    parser.add_argument(
        "--algo",
        type=str.lower,
        choices=RUN_ALGORITHMS,
        help="whose newest run of --env to take without -i (default: any algorithm's)",
    )
    parser.add_argument("-f", "--log-folder", default="logs", metavar="DIR", help="where runs are (default: logs)")
    parser.add_argument(
        "--exp-id",
        type=count_or_zero,
        metavar="K",
        help="number of the run, as in logs/ppo/Toy-Reach_<K> (default: 0, the newest)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--load-best", action="store_true", help="the policy in best/ (the default)")
    which.add_argument("--load-checkpoint", type=count, metavar="STEP", help="the policy in checkpoints/step_<STEP>/")
    which.add_argument("--load-last-checkpoint", action="store_true", help="the newest checkpoint's policy")


def add_length_arguments(parser: argparse.ArgumentParser, *, episodes: int) -> None:
    """Add `--episodes` and rl_zoo3's `-n`."""
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--episodes",
        type=count,
        default=episodes,
        metavar="N",
        help="spread over the tasks (default: %(default)s)",
    )
    length.add_argument(
        "-n",
        "--n-timesteps",
        type=count,
        metavar="STEPS",
        help="as many episodes as last so many simulator steps when none is solved",
    )
