"""Flags of several commands, each written once; rl_zoo3's where it has them. Imports nothing heavy."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from zoo.cli.arguments import (
    DEFAULT_NUM_ENVS,
    RUN_ALGORITHMS,
    add_fields,
    count,
    count_or_zero,
)
from zoo.config.evaluation import EvalOptions
from zoo.config.run_config import EnvOptions, PolicyOptions, RunConfig


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
    add_fields(parser, RunConfig, "device", "num_threads")
    parser.set_defaults(device=default)


def add_worker_error_argument(parser: argparse.ArgumentParser, *, default: str | None, restart: str) -> None:
    """Add `--on-worker-error`; `restart` describes that choice, `default` None leaves it to the run."""
    text = f"a simulator that dies, hangs or raises ends the command, or: {restart}"
    add_fields(parser, EnvOptions, "on_worker_error", on_worker_error={"help": text, "default": default or "restart"})
    parser.set_defaults(on_worker_error=default)


def add_new_run_arguments(
    parser: argparse.ArgumentParser, *, recipes: str, resume: str, params: str, **overrides: Mapping[str, str]
) -> None:
    """Add the flags of both `train` and `sft`; `overrides` are those of `add_fields` for `RunConfig`."""
    own = {
        "policy": {"default": "nano"},
        "seed": {"default": "drawn and stored"},
        "eval_episodes": {"default": "the recipe's"},
        "eval_tasks": {"metavar": "ID"},
        **overrides,
    }
    add_fields(parser, RunConfig, "policy", "num_envs", "seed", **own)
    parser.add_argument("-f", "--log-folder", metavar="DIR", help="where run folders go (default: logs)")
    parser.add_argument("-i", "--resume", metavar="RUN", help=resume)
    add_params_argument(parser, params)
    parser.add_argument("-conf", "--conf-file", metavar="FILE", help=f"YAML file instead of the packaged {recipes}")
    add_fields(parser, RunConfig, "eval_freq", "eval_episodes", "eval_tasks", "save_freq", **own)
    add_fields(parser, EvalOptions)
    add_device_arguments(parser, default=None)
    add_gym_packages_argument(parser)


def add_policy_arguments(parser: argparse.ArgumentParser, *, default_split: str = "as trained") -> None:
    """Add the selectors of every command that rolls a policy out."""
    add_fields(parser, RunConfig, "env", env={"metavar": "ID"})
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
    add_fields(parser, PolicyOptions, "unnorm_key")
    add_fields(parser, EnvOptions, "split", split={"default": default_split})
    add_params_argument(
        parser,
        "environment settings over the run's or the recipe's, and how the policy is opened, e.g. "
        "'env_kwargs:{protocol: lerobot}' 'policy_kwargs:{backbone_kwargs: {head: tokens}}'",
    )
    add_gym_packages_argument(parser)
    add_fields(parser, RunConfig, "num_envs", num_envs={"default": str(DEFAULT_NUM_ENVS)})
    add_device_arguments(parser, default="auto")
    add_fields(parser, RunConfig, "seed", seed={"help": "seed of sampled actions", "default": "0"})
    parser.set_defaults(seed=0)
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument("--stochastic", action="store_true", help="sample actions instead of deterministic ones")
    actions.add_argument(
        "--deterministic", action="store_true", help="the policy's own deterministic actions (the default)"
    )
    own = {"default": "the policy's own"}
    add_fields(parser, PolicyOptions, "temperature", "top_k", temperature=own, top_k=own)
    parser.add_argument(
        "--rounds", type=count, metavar="N", help="play every start state N times, each with other noise (default: 1)"
    )
    parser.add_argument(
        "--instructions",
        metavar="FILE",
        help="YAML file with other words for some tasks, {task name: instruction}",
    )
    add_worker_error_argument(parser, default="raise", restart="start it anew and run its episodes again")
    add_progress_argument(parser)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add rl_zoo3's selectors of a run and its checkpoint; see `zoo.cli.run_choice.chosen_run`."""
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


def add_episodes_argument(
    parser: argparse.ArgumentParser | argparse._MutuallyExclusiveGroup, *, default: int | None, words: str
) -> None:
    """Add the number of episodes that are played, by either of its names; `words` say the default."""
    parser.add_argument(
        *("--episodes", "--eval-episodes"),
        type=count,
        default=default,
        dest="eval_episodes" if default is None else "episodes",
        metavar="N",
        help=f"episodes, spread over the tasks (default: {words})",
    )


def add_length_arguments(parser: argparse.ArgumentParser, *, episodes: int) -> None:
    """Add `--episodes` and rl_zoo3's `-n`."""
    length = parser.add_mutually_exclusive_group()
    add_episodes_argument(length, default=episodes, words=str(episodes))
    length.add_argument(
        "-n",
        "--n-timesteps",
        type=count,
        metavar="STEPS",
        help="as many episodes as last so many simulator steps when none is solved",
    )
