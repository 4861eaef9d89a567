"""What a fine-tuning run is asked: from the flags of a new one, or from the folder of one that goes on."""

from __future__ import annotations

import argparse
import secrets
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue
from vla_gym.registry import find_benchmark
from zoo.cli.arguments import key_values
from zoo.cli.run_flags import (
    NEW_RUN_FLAGS,
    check_benchmark_options,
    check_same_run,
    over_recipe,
    resolve_policy,
)
from zoo.config.algorithm_configs import SFTConfig
from zoo.config.hyperparams import load_hyperparams
from zoo.config.run_config import ENV_OPTIONS, RunConfig, check_arithmetic, check_settings, sft_config
from zoo.config.settings import defaults_of
from zoo.files import quoted
from zoo.runs.folder import RunFolder, holds_policy
from zoo.runs.lookup import FINETUNING, ResumePoint, check_command, find_resume_point, find_run

DEFAULT_UPDATES = 1000
DEFAULT_NUM_ENVS = 4
_TRAINING_ONLY = ("group_size", "reward", "reward_scale", "on_worker_error")
_SETTINGS = (*(name for name in ENV_OPTIONS if name not in _TRAINING_ONLY), "policy_kwargs")
_RUN_FLAGS = ("eval_freq", "save_freq", "device", "num_threads")
"""Flags that are settings of a `RunConfig`, and may change when the run goes on."""
_PLACE_FLAGS = ("dataset", "micro_batch_size")
"""Where the dataset is and how an update fits into memory: settings of fine-tuning that may change likewise."""
_LEARNING_FLAGS = ("episodes", "batch_size", "learning_rate", "augment")
"""Settings of fine-tuning that may not."""


# A new run ------------------------------------------------------------------------------------------


def resolve_new_finetuning(args: argparse.Namespace) -> RunConfig:
    """What to learn and where: `-params` over the PPO recipe's environment and policy settings."""
    given = _asked_settings(args)
    suites = {task.suite for task in find_benchmark(args.env).tasks}
    policy = resolve_policy(
        "nano" if args.policy is None else args.policy,
        suite=suites.pop() if len(suites) == 1 else None,
        settings=given.get("policy_kwargs", {}),
    )
    recipe = load_hyperparams(
        "ppo", args.env, policy.family, Path(args.conf_file) if args.conf_file else None
    )
    tuned = {name: recipe.values[name] for name in _SETTINGS if name in recipe.values}
    values = over_recipe(tuned, policy, given)
    policy_kwargs, env_kwargs = values.pop("policy_kwargs", {}), values.pop("env_kwargs", {})
    episodes = defaults_of(RunConfig)["eval_episodes"] if args.eval_episodes is None else args.eval_episodes
    learning = SFTConfig(**_given(args, *_PLACE_FLAGS, *_LEARNING_FLAGS))
    config = RunConfig(
        algo="sft",
        env=args.env,
        policy=policy.name,
        n_timesteps=args.n_updates or DEFAULT_UPDATES,
        num_envs=max(1, min(args.num_envs or DEFAULT_NUM_ENVS, episodes)),
        seed=args.seed if args.seed is not None else secrets.randbits(32),
        eval_episodes=episodes,
        env_options={**values, **env_kwargs},
        policy_kwargs=policy_kwargs,
        algo_kwargs=asdict(learning),
        entry=recipe.entry,
        **_given(args, *_RUN_FLAGS),
    )
    check_arithmetic(config)
    check_benchmark_options(config)
    return config


def _asked_settings(args: argparse.Namespace) -> dict[str, Any]:
    """`-params`; raises `BadValue` or `UnknownName` where they, or the flags that every run needs, are wrong."""
    for name in ("env", "dataset"):
        if getattr(args, name) is None:
            raise BadValue(
                f"--{name} is missing. Example: zoo.sft --env MetaWorld/reach --dataset demos/reach"
            )
    find_benchmark(args.env)
    given = check_settings("ppo", key_values(args.params), "-params")
    for name in given:
        if name not in _SETTINGS:
            raise BadValue(
                f"-params {name}: fine-tuning takes settings of the environment and policy_kwargs only"
            )
    return given


def _given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The flags among `names` that were given; of one dataset its name alone."""
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    if len(given.get("dataset", ())) == 1:
        (given["dataset"],) = given["dataset"]
    return given


# A run that goes on ---------------------------------------------------------------------------------


def find_stopped_run(path: str) -> ResumePoint:
    """What `-i path` means: the checkpoint of a run that was stopped, which goes on in place.

    Raises `BadValue` for a run of another command, one that has ended, and one that left no checkpoint.
    """
    run = find_run(path)
    check_command(run, FINETUNING)
    total = run.config().n_timesteps
    if not run.saved_steps() and holds_policy(run.best) and _updates(run) == total:
        raise BadValue(
            f"'{run.path}' has made all its {total} updates; to learn more, start from its policy with "
            f"--policy {quoted(run.best)}"
        )
    point = find_resume_point(path, FINETUNING)
    if not point.in_place:
        raise BadValue(f"fine-tuning goes on in its own run folder only: -i {quoted(point.run.path)}")
    return point


def _updates(run: RunFolder) -> int:
    """Updates that a run's metrics tell of."""
    # Brings torch.
    from zoo.runs.curves import read_metrics

    rows = read_metrics(run)
    return int(rows[-1]["step"] or 0) if rows else 0


def resolve_resumed_finetuning(args: argparse.Namespace, point: ResumePoint) -> RunConfig:
    """The stored configuration with the few flags that may change; raises `BadValue` for the others."""
    config = point.run.config()
    if args.n_updates is not None:
        raise BadValue(
            f"-n cannot change when a run goes on with -i: its learning rate falls to 0 over {config.n_timesteps} "
            "updates. To learn more, let it end, then start from its policy with --policy RUN/best"
        )
    check_same_run(
        args,
        point.run,
        same=("env",),
        fixed=(*NEW_RUN_FLAGS, *_LEARNING_FLAGS),
        allowed=(*_RUN_FLAGS, *_PLACE_FLAGS),
    )
    learning = replace(sft_config(config), **_given(args, *_PLACE_FLAGS))
    for folder in learning.folders:
        if not folder.is_dir():
            raise BadValue(
                f"the dataset of '{point.run.path}' is not in '{folder}' (any more); if it was moved, say where "
                "it is with --dataset FOLDER, all of them if it learns from several"
            )
    config = replace(config, algo_kwargs=asdict(learning), **_given(args, *_RUN_FLAGS))
    check_arithmetic(config)
    return config
