"""From parsed flags to a checked `RunConfig`, of a new run or of one that goes on: mistakes of the user end here.

Runs before torch or a simulator is imported, before anything is written, and downloads nothing unless the policy is a
Hub id and all else is right.
"""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue
from vla_gym.registry import find_benchmark
from vla_gym.vector.protocol import with_instructions
from vla_policies.conventions import check_lengths
from vla_policies.resolver import PolicyRef
from zoo.agents.recipe import check_acting, check_trainable, find_policy, over_recipe, policy_lengths
from zoo.cli.arguments import DEFAULT_NUM_ENVS, flag_of, key_values
from zoo.config.algorithm_configs import SFTConfig, check_algorithm, check_once
from zoo.config.batch_plan import evaluated_benchmark
from zoo.config.evaluation_options import EVAL_OPTIONS, check_same_robot, evaluation_protocol
from zoo.config.hyperparams import deep_merge, load_hyperparams
from zoo.config.run_config import (
    ENV_OPTIONS,
    TRAINING_ONLY,
    RunConfig,
    benchmark_options,
    build_config,
    check_settings,
    env_options,
    sft_config,
    without_counts,
)
from zoo.config.settings import annotations_of, defaults_of
from zoo.config.tracking import Tracking
from zoo.distributed.placement import ALL, parse_placement
from zoo.evaluation.evaluator import tasks_of
from zoo.files import quoted
from zoo.runs.folder import RunFolder, holds_policy, longer
from zoo.runs.lookup import FINETUNING, ResumePoint, check_command, find_resume_point, find_run
from zoo.runs.monitor import lacks_evaluation

DEFAULT_UPDATES = 1000
_NEW_RUN_ONLY = (
    *("policy", "num_envs", "seed", "params", "conf_file", "eval_episodes", "eval_tasks"),
    *EVAL_OPTIONS,
)
"""Flags that no run takes when it goes on: they would make it another run."""
_TRAIN_SETTINGS = ("n_timesteps", "num_envs", "eval_freq", "eval_episodes", "save_freq", "on_worker_error")
"""Flags of `zoo.train` that stand above the setting of the same name."""
_SPREAD = ("pipeline_stages", "placement", "max_staleness", "offload_idle")
"""Flags that spread the work over processes, time and memory."""
_TRAIN_ANYTIME = (
    *("n_timesteps", "eval_freq", "save_freq", "device", "num_threads", "on_worker_error"),
    *_SPREAD,
)
"""Flags of `zoo.train` that may change when a run goes on."""
_SFT_PARAMS = (*(name for name in ENV_OPTIONS if name not in TRAINING_ONLY), "policy_kwargs")
"""Settings that `-params` of `zoo.sft` takes."""
_SFT_ANYTIME = ("eval_freq", "save_freq", "device", "num_threads")
"""Fields of `RunConfig` that may change when fine-tuning goes on."""
_SFT_PLACE = ("dataset", "paraphrases", "micro_batch_size")
"""Fields of `SFTConfig` that may change likewise."""
_SFT_FIXED = ("episodes", "batch_size", "learning_rate", "augment", "weight", "beta", "gamma", "privileged_coef")
"""Fields of `SFTConfig` that may not."""


def given_flags(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the flags among `names` that were given."""
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def given_evaluation(args: argparse.Namespace, algo: str) -> dict[str, Any]:
    """Return the flags of evaluations that were given, checked as settings of a run with `algo`."""
    given = given_flags(args, *EVAL_OPTIONS)
    if "eval_env_kwargs" in given:
        given["eval_env_kwargs"] = key_values(given["eval_env_kwargs"], flag="--eval-env-kwargs")
    return check_settings(algo, given, "--eval-...")


def tracking_of(args: argparse.Namespace) -> Tracking:
    """Return the trackers that the flags ask for, unchecked."""
    given = given_flags(args, *annotations_of(Tracking))
    return Tracking(**{**given, "trackers": list(dict.fromkeys(given.get("trackers", ())))})


def check_services(args: argparse.Namespace) -> None:
    """Raise for a tracker or a Hub repository that cannot work, before anything runs."""
    tracking_of(args).check()
    if args.push_to_hub is not None:
        from zoo.hub.upload import check_repo

        check_repo(args.push_to_hub)


# Reinforcement learning -----------------------------------------------------------------------------


def resolve_new_run(args: argparse.Namespace) -> RunConfig:
    """Return the configuration of a fresh run: flags over `-params` over the hyperparameter entry."""
    return open_new_run(args)[0]


def open_new_run(args: argparse.Namespace) -> tuple[RunConfig, PolicyRef]:
    """Return the configuration of a fresh run, and the policy that it starts from."""
    if args.env is None:
        raise BadValue("--env is missing. Example: --env Toy-Reach, --env LIBERO-Spatial, --env LIBERO-Spatial/3")
    algo = check_algorithm(args.algo or "ppo")
    find_benchmark(args.env)
    overrides = check_settings(algo, key_values(args.params), "-params")
    policy, entry, values = _tuned(args, algo, overrides)
    given = given_flags(args, *_TRAIN_SETTINGS)
    config = build_config(
        algo=algo,
        env=args.env,
        policy=policy.name,
        values={**without_counts(values, given), **given, **given_evaluation(args, algo)},
        num_collectors=_num_collectors(args),
        seed=_seed(args),
        entry=entry,
        **given_flags(args, "device", "num_threads", "eval_tasks", *_SPREAD),
    )
    config = with_start_states(config, asked="eval_episodes" in {**overrides, **given})
    return config, policy.read_by(config.policy_kwargs)


def open_published(args: argparse.Namespace) -> tuple[RunConfig, PolicyRef]:
    """Return the run of a row's recipe, and the policy that it starts from.

    Raises `BadValue` for flags and weights that ask for another.
    """
    from zoo.config.published import ANY_SUITE, find_published

    row = find_published(args.published)
    if args.resume:
        raise BadValue(f"--published {row.name} begins a run, and -i {args.resume} goes on with one; leave one out")
    if row.recipe is None:
        raise BadValue(f"published row '{row.name}' ({row.model}) was not trained by reward; it has no recipe here")
    env = args.env if row.recipe.env == ANY_SUITE else row.recipe.env
    if env is None or (row.recipe.env == ANY_SUITE and env not in row.envs):
        raise BadValue(f"--published {row.name} has a model for each suite: say which with --env {', '.join(row.envs)}")
    for name, wanted in (("algo", row.recipe.algo), ("env", env)):
        if getattr(args, name) not in (None, wanted):
            raise BadValue(f"--published {row.name} is --{name} {wanted}, got {getattr(args, name)}; leave one out")
        setattr(args, name, wanted)
    args.policy = args.policy or row.recipe.policy
    config, policy = open_new_run(args)
    family = config.entry.rpartition("/")[2]
    if family != row.recipe.policy:
        raise BadValue(
            f"--published {row.name} trains {row.recipe.policy}, and '{config.policy}' is read as {family}; give "
            f"weights of {row.recipe.policy}, or leave out --published"
        )
    return config, policy


def _tuned(args: argparse.Namespace, algo: str, overrides: dict[str, Any]) -> tuple[PolicyRef, str, dict[str, Any]]:
    """Return the policy, the key of its hyperparameter entry and that entry's settings, `overrides` over them."""
    conf_file = None if args.conf_file is None else Path(args.conf_file)
    benchmark = find_benchmark(args.env)

    def start_of(family: str) -> Mapping[str, Any]:
        recipe = load_hyperparams(algo, args.env, family, conf_file).values
        return deep_merge(recipe.get("policy", {}), overrides.get("policy", {}))

    policy, own = find_policy(
        "nano" if args.policy is None else args.policy,
        overrides.get("policy_kwargs", {}),
        start_of,
        benchmark=benchmark,
    )
    check_trainable(policy)
    action_dim = policy_lengths(policy).get("action_dim", benchmark.action_dim)
    check_lengths({"action_dim": action_dim}, {"action_dim": benchmark.action_dim})
    asked = {name: value for name, value in overrides.items() if name in EVAL_OPTIONS}
    evaluation = evaluation_protocol({**asked, **given_evaluation(args, algo)}, {}, 0)
    check_acting(policy, evaluation, evaluation.sampling, flags="--eval-")
    tuned = load_hyperparams(algo, args.env, policy.family, conf_file)
    return policy, tuned.entry, over_recipe(without_counts(tuned.values, overrides), policy, own, overrides)


def _num_collectors(args: argparse.Namespace) -> int:
    """Return the number of processes that collect: of `zoo.plan --ranks`, or of those that a launcher has started."""
    size = args.ranks if hasattr(args, "ranks") else int(os.environ.get("WORLD_SIZE", "1"))
    return len(parse_placement(args.placement or ALL, size).rollout)


def _seed(args: argparse.Namespace) -> int:
    return secrets.randbits(32) if args.seed is None else int(args.seed)


def resolve_resumed_run(args: argparse.Namespace, point: ResumePoint) -> RunConfig:
    """Return the stored configuration with the few flags that may change; raises `BadValue` for the others.

    A run that was stopped when all its steps were done has its last evaluation left.
    """
    config = stored = point.run.config()
    _check_same_run(args, point.run, same=("algo", "env"), fixed=_NEW_RUN_ONLY, allowed=_TRAIN_ANYTIME)
    changed = given_flags(args, *_TRAIN_ANYTIME)
    on_worker_error = changed.pop("on_worker_error", None)
    if on_worker_error is not None:
        changed["env_options"] = {**config.env_options, "on_worker_error": on_worker_error}
    config = replace(config, **changed)
    for folder in config.algorithm.bc_folders:
        if not folder.is_dir():
            raise BadValue(
                f"the demonstrations of '{point.run.path}' (bc_dataset) are not in '{folder}' (any more); put them "
                "back there, or go on in the working directory that the run began in"
            )
    as_asked = point.in_place and config.n_timesteps == stored.n_timesteps
    if config.n_timesteps <= point.step and not (as_asked and lacks_evaluation(point.run, point.step)):
        raise BadValue(
            f"'{point.run.path}' has done {point.step} of {config.n_timesteps} simulator steps already: "
            f"give a larger total with -n, e.g. -n {longer(config.n_timesteps, point.step)}"
        )
    return config


def _check_same_run(
    args: argparse.Namespace,
    run: RunFolder,
    *,
    same: Sequence[str],
    fixed: Sequence[str],
    allowed: Sequence[str],
) -> None:
    """Raise `BadValue` for a flag of `same` that is not as in the run, and for any of `fixed`; name the `allowed`."""
    config = run.config()
    for name in same:
        given = getattr(args, name)
        if given is not None and given != getattr(config, name):
            raise BadValue(f"--{name} {given} does not fit the run: '{run.path}' is {getattr(config, name)}")
    for name in fixed:
        if getattr(args, name) not in (None, []):
            raise BadValue(
                f"{flag_of(name)} cannot change when a run goes on with -i; allowed: {', '.join(map(flag_of, allowed))}"
            )


def check_log_folder(args: argparse.Namespace, point: ResumePoint) -> None:
    """Raise `BadValue` for a -f that does not hold the run that goes on in place."""
    elsewhere = args.log_folder is not None and Path(args.log_folder).resolve() not in point.run.path.resolve().parents
    if point.in_place and elsewhere:
        raise BadValue(
            f"-f {args.log_folder} is for new run folders, -i {quoted(args.resume)} goes on in its own; start one "
            f"from a checkpoint with -i {quoted(point.checkpoint)} -f {quoted(args.log_folder)}, or leave out -f"
        )


def with_start_states(config: RunConfig, *, asked: bool) -> RunConfig:
    """Return `config` with at most as many `eval_episodes` as there are start states.

    The benchmark's description is built with the run's options, so a typo in one of them raises here. More episodes
    than start states raise `BadValue` where the user `asked` for them; a recipe's number may be for more tasks.
    """
    benchmark = find_benchmark(config.env, **benchmark_options(config.env_options))
    with_instructions(benchmark, config.env_options.get("instructions", {}))
    evaluated = evaluated_benchmark(config)
    check_same_robot(evaluated, benchmark)
    grid = sum(evaluated.tasks[task_id].num_trials for task_id in tasks_of(config.eval_tasks, evaluated.tasks))
    if asked and config.eval_episodes > grid:
        raise BadValue(
            f"eval_episodes={config.eval_episodes} is more than the {grid} start states of "
            f"{', '.join(config.eval_tasks) or config.eval_env}; at most --eval-episodes {grid}"
        )
    return replace(config, eval_episodes=min(config.eval_episodes, grid))


# Supervised fine-tuning -----------------------------------------------------------------------------


def resolve_new_finetuning(args: argparse.Namespace) -> RunConfig:
    """Return the configuration of a fresh run: `-params` over the PPO entry's environment and policy settings."""
    return open_new_finetuning(args)[0]


def open_new_finetuning(args: argparse.Namespace) -> tuple[RunConfig, PolicyRef]:
    """Return the configuration of a fresh run, and the policy that it starts from."""
    policy, entry, values = _tuned(args, "ppo", _asked_settings(args))
    episodes = defaults_of(RunConfig)["eval_episodes"] if args.eval_episodes is None else args.eval_episodes
    num_updates = args.n_updates or DEFAULT_UPDATES
    config = RunConfig(
        algo="sft",
        env=args.env,
        policy=policy.name,
        n_timesteps=num_updates,
        num_envs=max(1, min(args.num_envs or DEFAULT_NUM_ENVS, episodes)),
        seed=_seed(args),
        eval_episodes=episodes,
        eval_options=given_evaluation(args, "ppo"),
        env_options=env_options(values, without=TRAINING_ONLY),
        policy_kwargs=values.get("policy_kwargs", {}),
        algo_kwargs=asdict(SFTConfig(**_given_sft(args, *_SFT_PLACE, *_SFT_FIXED))),
        entry=entry,
        **{"eval_freq": 0, "save_freq": max(1, num_updates // 4), **given_flags(args, "eval_tasks", *_SFT_ANYTIME)},
    )
    config = with_start_states(config, asked=args.eval_episodes is not None)
    return config, policy.read_by(config.policy_kwargs)


def _asked_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return `-params`; raises for wrong ones and for wrong flags that every run needs."""
    for name in ("env", "dataset"):
        if getattr(args, name) is None:
            raise BadValue(f"--{name} is missing. Example: zoo.sft --env MetaWorld/reach --dataset demos/reach")
    find_benchmark(args.env)
    for name in ("beta", "gamma"):
        if getattr(args, name) is not None and args.weight != "advantage":
            raise BadValue(f"--{name} is of --weight advantage; add that, or leave --{name} out")
    given = check_settings("ppo", key_values(args.params), "-params")
    for name in given:
        if name not in _SFT_PARAMS:
            raise BadValue(f"-params {name}: fine-tuning takes settings of the environment and policy_kwargs only")
    return given


def _given_sft(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the flags among `names` that were given, a single dataset as text; raises where one is named twice."""
    given = given_flags(args, *names)
    folders = given.get("dataset", ())
    check_once(folders, "--dataset")
    if len(folders) == 1:
        (given["dataset"],) = folders
    return given


def find_stopped_run(path: str) -> ResumePoint:
    """Return the checkpoint of a run that was stopped, which goes on in place.

    Raises `BadValue` for a run of another command, one that has ended, and one that left no checkpoint.
    """
    run = find_run(path)
    check_command(run, FINETUNING)
    if has_ended(run):
        raise BadValue(
            f"'{run.path}' has made all its {run.config().n_timesteps} updates; to learn more, start from its policy "
            f"with --policy {quoted(run.best)}"
        )
    point = find_resume_point(path, FINETUNING)
    if not point.in_place:
        raise BadValue(f"fine-tuning goes on in its own run folder only: -i {quoted(point.run.path)}")
    return point


def has_ended(run: RunFolder) -> bool:
    """Whether a run of fine-tuning was concluded: its checkpoints are gone, its policy was evaluated at the end."""
    return not run.saved_steps() and holds_policy(run.best) and not lacks_evaluation(run, run.config().n_timesteps)


def resolve_resumed_finetuning(args: argparse.Namespace, point: ResumePoint) -> RunConfig:
    """Return the stored configuration with the few flags that may change; raises `BadValue` for the others."""
    config = point.run.config()
    if args.n_updates is not None:
        raise BadValue(
            f"-n cannot change when a run goes on with -i: its learning rate falls to 0 over {config.n_timesteps} "
            "updates. To learn more, let it end, then start from its policy with --policy RUN/best"
        )
    _check_same_run(
        args,
        point.run,
        same=("env",),
        fixed=(*_NEW_RUN_ONLY, *_SFT_FIXED),
        allowed=(*_SFT_ANYTIME, *_SFT_PLACE),
    )
    learning = replace(sft_config(config), **_given_sft(args, *_SFT_PLACE))
    for folder in learning.folders:
        if not folder.is_dir():
            raise BadValue(
                f"the dataset of '{point.run.path}' is not in '{folder}' (any more); if it was moved, say where "
                "it is with --dataset FOLDER, all of them if it learns from several"
            )
    return replace(config, algo_kwargs=asdict(learning), **given_flags(args, *_SFT_ANYTIME))
