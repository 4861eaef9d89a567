"""Flags of several commands, each written once; rl_zoo3's where it has them. Imports nothing heavy."""

from __future__ import annotations

import argparse
import math

from zoo.cli.arguments import (
    DEFAULT_NUM_ENVS,
    RUN_ALGORITHMS,
    count,
    count_or_zero,
    device,
    number,
    processes,
    seed,
    threads,
    worker_error,
)

_temperature = number(lambda value: 0.0 < value < math.inf, "a number above 0, e.g. 1.6")


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
    parser.add_argument(
        "--eval-episodes",
        type=count_or_zero,
        metavar="N",
        help="start states evaluated; 0: none (default: the recipe's)",
    )
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
    parser.add_argument(
        "--eval-split", metavar="NAME", help="start states of another split, e.g. test (default: the run's own)"
    )
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
        "--eval-rounds", type=count, metavar="N", help="episodes of every start state, with other noise (default: 1)"
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
