"""`python -m zoo.sft --env MetaWorld/reach --dataset demos/reach`: learn a dataset's actions, then evaluate."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vla_gym.benchmarks import find_benchmark
from vla_gym.errors import BadValue
from zoo.arguments import (
    OneLineParser,
    add_gym_packages_argument,
    count,
    count_or_zero,
    import_gym_packages,
    key_values,
)
from zoo.cli import guarded, hush_ranks
from zoo.config import DEFAULT_EVAL_EPISODES, RunConfig, check_arithmetic
from zoo.hyperparams import load_hyperparams
from zoo.lerobot_reader import check_dataset
from zoo.resolve import check_benchmark_options, resolve_policy
from zoo.settings import ENV_SETTINGS, check_settings

_TRAINING_ONLY = ("group_size", "reward", "reward_scale", "on_worker_error")
_SETTINGS = (*(name for name in ENV_SETTINGS if name not in _TRAINING_ONLY), "policy_kwargs")


def parser() -> OneLineParser:
    """The flags of `zoo.sft`."""
    p = OneLineParser("zoo.sft", "Supervised fine-tuning on demonstrations, then an evaluation.")
    p.add_argument("--env", metavar="ID", help="environment the policy is for, e.g. MetaWorld/reach")
    p.add_argument("--dataset", metavar="FOLDER", help="LeRobotDataset v3.0, e.g. of zoo.collect")
    p.add_argument(
        "--episodes", type=count, metavar="N", help="learn its first N episodes only (default: all)"
    )
    p.add_argument(
        "--policy",
        default="nano",
        metavar="NAME",
        help="family name, checkpoint folder or Hub id (default: nano)",
    )
    p.add_argument("-n", "--n-updates", type=count, default=1000, metavar="N", help="updates (default: 1000)")
    p.add_argument(
        "--batch-size",
        type=count,
        default=64,
        metavar="B",
        help="frames per update, all processes together (default: 64)",
    )
    p.add_argument(
        "--micro-batch-size",
        type=count,
        metavar="M",
        help="of these, in the network at a time (default: all)",
    )
    p.add_argument(
        "--learning-rate",
        type=_rate,
        default=1e-3,
        metavar="LR",
        help="at the start, then down to 0 (default: 1e-3)",
    )
    p.add_argument(
        "--augment",
        action="store_true",
        help="shift the pictures at random and change their light and colours",
    )
    p.add_argument(
        "--seed", type=count_or_zero, metavar="S", help="seed of everything (default: drawn and stored)"
    )
    p.add_argument(
        "-f", "--log-folder", default="logs", metavar="DIR", help="where run folders go (default: logs)"
    )
    p.add_argument(
        "-params",
        "--params",
        nargs="+",
        default=[],
        metavar="KEY:VALUE",
        help="settings of the environment and policy_kwargs, over the recipe's: chunk:8 image_size:64",
    )
    p.add_argument(
        "-conf", "--conf-file", metavar="FILE", help="YAML file instead of the packaged recipes of PPO"
    )
    p.add_argument(
        "--num-envs", type=count, default=4, metavar="N", help="simulators of the evaluation (default: 4)"
    )
    p.add_argument(
        "--eval-episodes", type=count_or_zero, metavar="N", help="episodes of an evaluation; 0: none"
    )
    p.add_argument(
        "--eval-freq",
        type=count_or_zero,
        default=0,
        metavar="UPDATES",
        help="updates between evaluations; 0: at the end (default)",
    )
    p.add_argument(
        "--device", default="auto", metavar="D", help="torch device: auto, cpu, cuda (default: auto)"
    )
    p.add_argument(
        "--num-threads", type=count, metavar="N", help="torch CPU threads (default: torch's choice)"
    )
    add_gym_packages_argument(p)
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.guarded`."""
    args = parser().parse(argv)
    import_gym_packages(args.gym_packages)
    config = resolve(args)
    dataset = Path(args.dataset).expanduser()
    check_dataset(dataset)
    hush_ranks()
    # Only now: torch and the simulators take seconds to import, a typo should not.
    from zoo.finetuning import FinetuningRequest, finetune

    request = FinetuningRequest(
        config=config,
        dataset=dataset,
        episodes=args.episodes,
        batch_size=args.batch_size,
        micro_batch_size=args.micro_batch_size,
        learning_rate=args.learning_rate,
        max_grad_norm=1.0,
        augment=args.augment,
        log_folder=Path(args.log_folder),
        command=("python", "-m", "zoo.sft", *argv),
        args=vars(args),
    )
    finetune(request, say=lambda text: print(text, flush=True))
    return 0


def resolve(args: argparse.Namespace) -> RunConfig:
    """What to learn and where: `-params` over the PPO recipe's environment and policy settings."""
    for name in ("env", "dataset"):
        if getattr(args, name) is None:
            raise BadValue(
                f"--{name} is missing. Example: zoo.sft --env MetaWorld/reach --dataset demos/reach"
            )
    suites = {task.suite for task in find_benchmark(args.env).tasks}
    given = check_settings("ppo", key_values(args.params), "-params")
    for name in given:
        if name not in _SETTINGS:
            raise BadValue(
                f"-params {name}: fine-tuning takes settings of the environment and policy_kwargs only"
            )
    policy = resolve_policy(
        args.policy,
        suite=suites.pop() if len(suites) == 1 else None,
        settings=given.get("policy_kwargs", {}),
    )
    recipe = load_hyperparams(
        "ppo", args.env, policy.family, Path(args.conf_file) if args.conf_file else None
    )
    values: dict[str, Any] = {name: recipe.values[name] for name in _SETTINGS if name in recipe.values}
    values.update(policy.env_options)
    values.update(
        {name: value for name, value in given.items() if name not in ("policy_kwargs", "env_kwargs")}
    )
    env_kwargs = {**values.pop("env_kwargs", {}), **given.get("env_kwargs", {})}
    policy_kwargs = dict(values.pop("policy_kwargs", {}))
    if not policy.takes_options:
        policy_kwargs.pop("backbone_kwargs", None)
    episodes = DEFAULT_EVAL_EPISODES if args.eval_episodes is None else args.eval_episodes
    config = RunConfig(
        algo="sft",
        env=args.env,
        policy=policy.name,
        n_timesteps=args.n_updates,
        num_envs=max(1, min(args.num_envs, episodes)),
        seed=args.seed if args.seed is not None else secrets.randbits(32),
        device=args.device,
        num_threads=args.num_threads,
        eval_freq=args.eval_freq,
        eval_episodes=episodes,
        env_options={**values, **env_kwargs},
        policy_kwargs={**policy_kwargs, **given.get("policy_kwargs", {})},
        entry=recipe.entry,
    )
    check_arithmetic(config)
    check_benchmark_options(config)
    return config


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < 1.0:
        raise argparse.ArgumentTypeError(f"must be a number in 0 .. 1, e.g. 1e-3, got '{text}'")
    return value


def main() -> int:
    """Entry point of `python -m zoo.sft`."""
    return guarded(run)


if __name__ == "__main__":
    raise SystemExit(main())
