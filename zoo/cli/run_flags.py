"""From parsed flags to a checked `RunConfig`, of a new run or of one that goes on: mistakes of the user end here.

Runs before torch or a simulator is imported, before anything is written, and downloads nothing unless the policy is a
Hub id and all else is right.
"""

from __future__ import annotations

import argparse
import os
import secrets
from dataclasses import replace
from pathlib import Path

from vla_gym.errors import BadValue, shown
from vla_gym.registry import find_benchmark
from vla_gym.vector.protocol import with_instructions
from vla_policies.conventions import check_lengths
from vla_policies.resolver import PolicyRef
from zoo.agents.recipe import check_acting, check_trainable, find_policy, over_recipe, policy_lengths
from zoo.cli.arguments import flag_of, key_values
from zoo.config.algorithm_configs import check_algorithm
from zoo.config.evaluation import EVAL_OPTIONS, check_same_robot, evaluation_protocol
from zoo.config.hyperparams import deep_merge, load_hyperparams
from zoo.config.run_config import (
    RunConfig,
    build_config,
    check_settings,
    without_counts,
)
from zoo.config.settings import Options, Settings, annotations_of, anytime_of
from zoo.config.tracking import Tracking
from zoo.distributed.placement import ALL, parse_placement
from zoo.evaluation.evaluator import tasks_of
from zoo.files import quoted
from zoo.runs.folder import RunFolder, folder_name, longer
from zoo.runs.lookup import ResumePoint, find_agents, interrupted_run
from zoo.runs.monitor import lacks_evaluation

_TRAIN_SETTINGS = ("n_timesteps", "num_envs", "eval_freq", "eval_episodes", "save_freq", "on_worker_error")
"""Flags of `vla-zoo train` that stand above the setting of the same name."""
_OF_POLICY = ("policy", "policy_kwargs", "chunk", "image_size", "wrist_camera", "state")
"""Settings that say what a policy is, sees and does, which a trained one has already."""
_SPREAD = ("pipeline_stages", "placement", "max_staleness", "offload_idle", "rank_timeout")
"""Flags that spread the work over processes, time and memory."""


def given_flags(args: argparse.Namespace, *names: str) -> Settings:
    """Return the flags among `names` that were given."""
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def given_evaluation(args: argparse.Namespace, algo: str) -> Settings:
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
    if args.policy is None and args.conf_file is None:
        args.policy = _shipped_start(args.env, overrides)
    policy, entry, values = tuned_settings(args, algo, overrides)
    given = given_flags(args, *_TRAIN_SETTINGS)
    config = build_config(
        algo=algo,
        env=args.env,
        policy=policy.name,
        values={**without_counts(values, given), **given, **given_evaluation(args, algo)},
        num_collectors=_num_collectors(args),
        seed=seed_of(args),
        entry=entry,
        **given_flags(args, "device", "num_threads", "eval_tasks", *_SPREAD),
    )
    config = with_start_states(config, asked="eval_episodes" in {**overrides, **given})
    return config, policy.read_by(config.policy_kwargs)


def _shipped_start(env: str, overrides: Settings) -> str | None:
    """The agent that imitation made of this environment, unless settings ask for another policy or other pictures."""
    agent = f"agents/sft/{folder_name(env)}"
    asked = overrides.keys() & {*_OF_POLICY, "env_kwargs"}
    return agent if not asked and agent in find_agents() else None


def open_published(args: argparse.Namespace) -> tuple[RunConfig, PolicyRef]:
    """Return the run of a row's recipe, and the policy that it starts from.

    Raises `BadValue` for flags and weights that ask for another.
    """
    from zoo.evaluation.published import ANY_SUITE, find_published

    row = find_published(args.published)
    if args.resume:
        raise BadValue(f"--published {row.name} begins a run, and -i {args.resume} goes on with one; leave one out")
    if row.recipe is None:
        raise BadValue(
            f"published row '{row.name}' ({row.model}) has no recipe here: "
            "it was not trained by reward, or its source gives no settings; vla-zoo published lists rows that have one"
        )
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


def tuned_settings(args: argparse.Namespace, algo: str, overrides: Settings) -> tuple[PolicyRef, str, Settings]:
    """Return the policy, the key of its hyperparameter entry and that entry's settings, `overrides` over them."""
    conf_file = None if args.conf_file is None else Path(args.conf_file)
    benchmark = find_benchmark(args.env)

    def start_of(family: str) -> Options:
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
    check_lengths({"action_dim": action_dim}, {"action_dim": benchmark.action_dim}, policy.backbone_class.length_hint)
    asked = {name: value for name, value in overrides.items() if name in EVAL_OPTIONS}
    evaluation = evaluation_protocol({**asked, **given_evaluation(args, algo)}, {}, 0)
    check_acting(policy, evaluation, evaluation.sampling, flags="--eval-")
    tuned = load_hyperparams(algo, args.env, policy.family, conf_file)
    return policy, tuned.entry, over_recipe(without_counts(tuned.values, overrides), policy, own, overrides)


def _num_collectors(args: argparse.Namespace) -> int:
    """Return the number of processes that collect: of `--ranks`, or of those that a launcher has started."""
    size = args.ranks if hasattr(args, "ranks") else int(os.environ.get("WORLD_SIZE", "1"))
    return len(parse_placement(args.placement or ALL, size).rollout)


def seed_of(args: argparse.Namespace) -> int:
    """Return `--seed`, else a drawn one."""
    return secrets.randbits(32) if args.seed is None else int(args.seed)


def resolve_resumed_run(args: argparse.Namespace, point: ResumePoint) -> RunConfig:
    """Return the stored configuration with the few flags that may change; raises `BadValue` for the others.

    A run that was stopped when all its steps were done has its last evaluation left.
    """
    stored = point.run.config()
    changed = changed_flags(args, point.run, RunConfig)
    if "on_worker_error" in changed:
        changed["env_options"] = {**stored.env_options, "on_worker_error": changed.pop("on_worker_error")}
    config = replace(stored, **changed)
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


def resume_interrupted(args: argparse.Namespace) -> str | None:
    """Point `--resume auto` at the newest run of its algorithm, environment and log folder; at none where that has no
    checkpoint, so that a run begins. Return a line where that run is complete.

    A launcher repeats one command, so flags that began the run are allowed as they were; raises `BadValue` for others.
    """
    args.resume = None
    if args.env is None:
        raise BadValue("--resume auto needs --env, as the command that begins the run")
    run = interrupted_run(Path(args.log_folder or "logs"), check_algorithm(args.algo or "ppo"), args.env)
    if run is None:
        return None
    stored, step = run.config(), run.saved_steps()[-1]
    beginning = [name for name in (*annotations_of(RunConfig), *EVAL_OPTIONS) if hasattr(args, name)]
    beginning = [name for name in beginning if name not in (*anytime_of(RunConfig), "algo", "env")]
    if any(getattr(args, name) not in (None, []) for name in (*beginning, "params", "conf_file")):
        asked = open_new_run(args)[0]
        drawn = [name for name in ("seed", "num_envs") if getattr(args, name) is None]
        for name in annotations_of(RunConfig):
            one, other = getattr(asked, name), getattr(stored, name)
            if name not in (*anytime_of(RunConfig), *drawn, "entry") and one != other:
                raise BadValue(
                    f"--resume auto: '{run.path}' was begun with {name} {shown(other)}, this command asks for "
                    f"{shown(one)}. Give what it was begun with, or another -f for a new run"
                )
    for name in (*beginning, "conf_file"):
        setattr(args, name, None)
    args.params, args.resume = [], str(run.path)
    if step >= (args.n_timesteps or stored.n_timesteps) and not lacks_evaluation(run, step):
        return f"'{run.path}' is complete: {step} simulator steps"
    return None


def changed_flags(args: argparse.Namespace, run: RunFolder, *configs: type) -> Settings:
    """Return the flags of a run that goes on, which may be those of `configs`' fields that change at any time.

    Raises `BadValue` for others, but for `--algo` and `--env` as the run has them.
    """
    names = [name for config in configs for name in annotations_of(config) if hasattr(args, name)]
    anytime = [name for config in configs for name in anytime_of(config) if name in names]
    anytime += ["on_worker_error"] if hasattr(args, "on_worker_error") else []
    config = run.config()
    for name in (*names, "params", "conf_file", *EVAL_OPTIONS):
        given = getattr(args, name)
        if name in ("algo", "env"):
            if given not in (None, getattr(config, name)):
                raise BadValue(f"--{name} {given} does not fit the run: '{run.path}' is {getattr(config, name)}")
        elif name not in anytime and given not in (None, []):
            raise BadValue(
                f"{flag_of(name)} cannot change when a run goes on with -i; allowed: {', '.join(map(flag_of, anytime))}"
            )
    return given_flags(args, *anytime)


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
    benchmark = config.benchmark
    with_instructions(benchmark, config.env_options.get("instructions", {}))
    evaluated = config.evaluated_benchmark
    check_same_robot(evaluated, benchmark)
    grid = sum(evaluated.tasks[task_id].num_trials for task_id in tasks_of(config.eval_tasks, evaluated.tasks))
    if asked and config.eval_episodes > grid:
        raise BadValue(
            f"eval_episodes={config.eval_episodes} is more than the {grid} start states of "
            f"{', '.join(config.eval_tasks) or config.eval_env}; at most --eval-episodes {grid}"
        )
    return replace(config, eval_episodes=min(config.eval_episodes, grid))
