"""Command-line grammar: rl_zoo3's flags, without its `eval`. Imports nothing heavy."""

from __future__ import annotations

import argparse
import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, get_args

import yaml

from vla_gym.errors import BadValue, unknown_name
from vla_gym.workers.pool import OnWorkerError
from zoo.config.algorithm_configs import ALGORITHMS
from zoo.config.run_config import LARGEST_SEED
from zoo.config.search_space import yaml_line


class OneLineParser(argparse.ArgumentParser):
    """An `ArgumentParser` whose complaints are `BadValue`s of one line, with the nearest flag."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise BadValue(f"{message} ({self.prog} --help lists all options)")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse all of `argv`; raises `BadValue` for anything that is no option."""
        args, extra = self.parse_known_args(list(argv))
        if extra:
            flags = [flag for action in self._actions for flag in action.option_strings]
            near = difflib.get_close_matches(extra[0].split("=")[0], flags, n=1)
            self.error(f"unknown argument '{extra[0]}'" + (f", did you mean '{near[0]}'?" if near else ""))
        return args


def count(text: str) -> int:
    """A whole number >= 1, also written 1e6 or 10_000."""
    number = whole_number(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def count_or_zero(text: str) -> int:
    """A whole number >= 0, also written 1e6."""
    number = whole_number(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, got {text}")
    return number


def seed(text: str) -> int:
    """A seed: what numpy and torch both take."""
    number = whole_number(text)
    if not 0 <= number <= LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"must be in 0 .. {LARGEST_SEED}, got {text}")
    return number


def whole_number(text: str) -> int:
    """An integer, also written 1e6; raises `argparse.ArgumentTypeError`."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number != int(number):
        raise argparse.ArgumentTypeError(f"must be a whole number, got '{text}'")
    return int(number)


PIPELINE_WORDS: dict[str, int | str] = {"off": 1, "on": 2, "auto": "auto"}
"""Words for numbers of stages."""


def pipeline_stages(text: str) -> int | str:
    """A number of stages >= 1, or off (1), on (2), auto."""
    if text in PIPELINE_WORDS:
        return PIPELINE_WORDS[text]
    try:
        return count(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; or one of {', '.join(PIPELINE_WORDS)}") from error


def key_values(pairs: Sequence[str]) -> dict[str, Any]:
    """`["learning_rate:3e-4", "policy_kwargs:{temperature: 0.8}"]` -> dict; values are YAML, never code.

    Raises `BadValue` for a pair without a colon, an empty key, or a value that is no YAML.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, colon, text = pair.partition(":")
        if not colon or not key.strip():
            raise BadValue(
                f"-params wants key:value, got '{pair}'. Example: -params learning_rate:3e-4 chunk:8"
            )
        try:
            values[key.strip()] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            reason = " ".join(str(error).split())
            raise BadValue(f"-params {key}: cannot read the value '{text}': {reason}") from error
    return values


def as_pairs(values: Mapping[str, Any]) -> list[str]:
    """Inverse of `key_values`."""
    return [f"{name}:{yaml_line(value)}" for name, value in values.items()]


def add_gym_packages_argument(parser: argparse.ArgumentParser) -> None:
    """`--gym-packages`, as in rl_zoo3."""
    parser.add_argument(
        "--gym-packages",
        nargs="+",
        default=[],
        metavar="MODULE",
        help="modules to import first: they call vla_gym.register_benchmark",
    )


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    """The selectors shared by every command that rolls a policy out."""
    parser.add_argument("--env", metavar="ID", help="environment id, e.g. LIBERO-Spatial or LIBERO-Spatial/3")
    parser.add_argument(
        "-i",
        "--run",
        metavar="RUN",
        help="run folder, best/ or checkpoints/step_<n>/ folder, or the Hub id of a run",
    )
    parser.add_argument("--policy", metavar="NAME", help="family name or folder, instead of -i")
    parser.add_argument(
        "--unnorm-key",
        metavar="KEY",
        help="data set whose action statistics a published checkpoint is to use",
    )
    parser.add_argument(
        "--split", metavar="NAME", help="start states of another split, e.g. test (default: as trained)"
    )
    parser.add_argument(
        "-params",
        "--params",
        nargs="+",
        default=[],
        metavar="KEY:VALUE",
        help="environment settings over the run's or the recipe's, e.g. env_kwargs:{protocol: lerobot}",
    )
    add_gym_packages_argument(parser)
    parser.add_argument("--num-envs", type=count, metavar="N", help="simulators side by side (default: 4)")
    parser.add_argument(
        "--device", default="auto", help="torch device: auto, cpu, cuda, cuda:1 (default: auto)"
    )
    parser.add_argument("--num-threads", type=count, metavar="N", help="torch CPU threads")
    parser.add_argument("--seed", type=seed, default=0, help="seed of sampled actions (default: 0)")
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument(
        "--stochastic", action="store_true", help="sample actions instead of deterministic ones"
    )
    actions.add_argument(
        "--deterministic", action="store_true", help="what the policy takes for best (the default)"
    )
    parser.add_argument(
        "--instructions",
        metavar="FILE",
        help="YAML file with other words for some tasks, {task name: instruction}",
    )
    add_worker_error_argument(parser, default="raise", what="start it anew and run its episodes again")
    parser.add_argument("-P", "--progress", action="store_true", help="progress bar with time left")


RUN_ALGORITHMS = (*ALGORITHMS, "sft")
"""Folders of runs that hold an agent."""


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """rl_zoo3's selectors of a run and its checkpoint, for commands that take `-i`; see `zoo.cli.run_choice`."""
    parser.add_argument(
        "--algo",
        choices=RUN_ALGORITHMS,
        help="whose newest run of --env to take without -i (default: any algorithm's)",
    )
    parser.add_argument(
        "-f", "--log-folder", default="logs", metavar="DIR", help="where runs are (default: logs)"
    )
    parser.add_argument(
        "--exp-id",
        type=count_or_zero,
        default=0,
        metavar="K",
        help="number of the run, as in logs/ppo/Toy-Reach_<K> (default: 0, the newest)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--load-best", action="store_true", help="the policy in best/ (the default)")
    which.add_argument(
        "--load-checkpoint", type=count, metavar="STEP", help="the policy in checkpoints/step_<STEP>/"
    )
    which.add_argument("--load-last-checkpoint", action="store_true", help="the newest checkpoint's policy")


def add_length_arguments(parser: argparse.ArgumentParser, *, episodes: int) -> None:
    """How much is shown: `--episodes`, or rl_zoo3's `-n`."""
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


def add_worker_error_argument(parser: argparse.ArgumentParser, *, default: str | None, what: str) -> None:
    """`--on-worker-error`; `what` says what "restart" does, `default` None leaves it to the run."""
    parser.add_argument(
        "--on-worker-error",
        type=worker_error,
        default=default,
        metavar="{raise,restart}",
        help=f"a simulator that dies, hangs or raises ends the command, or: {what} "
        f"(default: {default or 'restart'})",
    )


def worker_error(text: str) -> str:
    """One of the two ways to meet a failed worker."""
    if text not in get_args(OnWorkerError):
        raise argparse.ArgumentTypeError(str(unknown_name("way", text, get_args(OnWorkerError))))
    return text
