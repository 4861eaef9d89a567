"""`--published NAME` of `zoo.evaluate` and `zoo.train`: a published row's protocol and recipe put into the flags."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue
from vla_gym.reading import user_path
from vla_gym.registry import find_benchmark
from vla_gym.system.paths import check_destination
from vla_policies.checkpoint_io.folder import CONFIG_FILE
from vla_policies.model_folder import Request
from vla_policies.registry import FAMILIES
from vla_policies.resolver import open_folder
from zoo.agents.agent import Agent
from zoo.agents.measuring import measure, partial_file, weights_of, write_or_print
from zoo.agents.recipe import find_policy, over_recipe
from zoo.cli.agent import OF_POLICY, given_settings, plan_rollout
from zoo.cli.arguments import as_pairs, flag_of, is_given, key_values
from zoo.cli.published_comparison import comparison_lines, comparison_record, protocol_lines
from zoo.cli.run_flags import resolve_new_run
from zoo.config.hyperparams import acting_recipe, deep_merge, load_hyperparams
from zoo.config.published import ANY_SUITE, PublishedRow, find_published
from zoo.config.run_config import RunConfig, benchmark_options, build_config, env_options
from zoo.config.settings import yaml_line
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.runs.lookup import policy_path
from zoo.training.run_plan import RunPlan, arithmetic_lines

_SET_BY_ROW = (
    "stochastic",
    "deterministic",
    "temperature",
    "top_k",
    "rounds",
    "split",
    "algo",
    "exp_id",
    "instructions",
)
"""Flags of `zoo.evaluate` that the row's protocol decides."""
_OF_ROWS = {"split": None, "instructions": None}
"""Settings in `-params` that every row decides."""


def row_lines(row: PublishedRow) -> list[str]:
    """Return how a row is measured."""
    return protocol_lines(row, _starts(row, row.envs, None), _grid(row))


# Evaluation -----------------------------------------------------------------------------------------------


def evaluate_published(args: argparse.Namespace) -> int:
    """Evaluate by a row's protocol and print each published figure beside ours; with `--dry-run` only say how."""
    row = find_published(args.published)
    _check_flags(args, row)
    _check_family(args, row)
    envs, options = _chosen_envs(row, args.env), _own_options(args)
    print("\n".join(protocol_lines(row, _starts(row, envs, args.eval_episodes, options), _grid(row))), flush=True)
    if options:
        print(f"besides      {yaml_line(options)}: yours, and not of the published protocol", flush=True)
    if args.dry_run:
        print("\n".join([*_weights_lines(row, envs, args), *recipe_lines(row, args.env)]))
        print("dry run      nothing was started or written")
        return 0
    for env in envs:
        find_benchmark(env, **row.protocol.env_kwargs)  # raises for missing files before weights are fetched
    output = check_destination(Path(args.output or f"results_{row.name}.json"))
    plans = {env: _plan(args, row, env) for env in envs}
    measured, records = {}, {}
    for env, plan in plans.items():
        table, record = measure(plan, weights=weights_of(plan), partial=partial_file(output), progress=args.progress)
        print(table, flush=True)
        tasks = find_benchmark(plan.env, **benchmark_options(plan.env_options)).tasks
        measured[env] = [EpisodeRecord(**episode) for episode in record["episodes"]], tasks
        records[env] = record
    print("\n".join(comparison_lines(row, measured)))
    write_or_print(output, json.dumps({"published": comparison_record(row, measured), "results": records}, indent=2))
    print(f"written to {output}")
    return 0


def _check_flags(args: argparse.Namespace, row: PublishedRow) -> None:
    """Raise `BadValue` for flags and settings in `-params` that the row decides."""
    flags = [name for name in _SET_BY_ROW if is_given(args, name)]
    given = flag_of(flags[0]) if flags else None
    own_weights = args.run is None and args.policy is None
    reading = row.reading(row.envs[0]) if own_weights else {}
    decided = {
        **_OF_ROWS,
        "env_kwargs": {**_OF_ROWS, **row.protocol.env_kwargs},
        "policy_kwargs": {"temperature": None, "top_k": None, **reading},
    }
    if (setting := _shared(given_settings(args.params), decided)) is not None:
        given = given or f"-params {setting}"
    if given is not None:
        raise BadValue(f"{given} is the protocol's, and --published {row.name} sets it; leave it out")


def _check_family(args: argparse.Namespace, row: PublishedRow) -> None:
    """Raise `BadValue` for a policy that is known to be of another family than the row's, unless the user names one."""
    if args.policy is None or row.family is None or "family" in given_settings(args.params).get("policy_kwargs", {}):
        return
    family = _own_family(args.policy)
    if family not in (None, row.family):
        raise BadValue(
            f"--published {row.name} plays {row.family}, and '{args.policy}' is of family {family}; give weights of "
            f"{row.family}"
        )


def _own_family(name: str) -> str | None:
    """The family that a name is, or that a folder here in this project's layout says; None of others."""
    if name in FAMILIES:
        return name
    folder = user_path(policy_path(name))
    ref = open_folder(folder, Request(verify=False)) if (folder / CONFIG_FILE).is_file() else None
    return ref.family if ref is not None and ref.own_layout else None


def _shared(given: Mapping[str, Any], decided: Mapping[str, Any]) -> str | None:
    """Return the first setting that both have, as `-params` write it; None where they share none."""
    for name, value in given.items():
        former = decided.get(name)
        if isinstance(value, Mapping) and isinstance(former, Mapping):
            if (inner := _shared(value, former)) is not None:
                return f"{name}:{{{inner}}}"
        elif name in decided:
            return name
    return None


def _own_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the benchmark's options in `-params` that change what is measured."""
    options = benchmark_options(env_options(given_settings(args.params)))
    return {name: value for name, value in options.items() if name not in OF_POLICY}


def _chosen_envs(row: PublishedRow, env: str | None) -> tuple[str, ...]:
    if env is None:
        return row.envs
    if env not in row.envs:
        raise BadValue(f"--published {row.name} is of {', '.join(row.envs)}, got --env {env}")
    return (env,)


def _episodes(row: PublishedRow, args: argparse.Namespace) -> int | None:
    return row.protocol.start_states if args.eval_episodes is None else int(args.eval_episodes)


def _grid(row: PublishedRow, own: Mapping[str, Any] | None = None) -> dict[str, int]:
    # What may be missing here is counted all the same.
    options = {name: value for name, value in {**(own or {}), **row.protocol.env_kwargs}.items() if name != "stand_ins"}
    return {env: sum(task.num_trials for task in find_benchmark(env, **options).tasks) for env in row.envs}


def _starts(
    row: PublishedRow, envs: tuple[str, ...], episodes: int | None, own: Mapping[str, Any] | None = None
) -> dict[str, int]:
    grid = _grid(row, own)
    return {env: min(grid[env], episodes or row.protocol.start_states or grid[env]) for env in envs}


def _plan(args: argparse.Namespace, row: PublishedRow, env: str) -> Agent:
    """Return the evaluation in one environment by the row's protocol."""
    flags, protocol = copy(args), row.protocol
    flags.env = env
    if args.run is None and args.policy is None:
        flags.policy = row.start_policy(env)
    flags.stochastic, flags.temperature, flags.rounds = protocol.sample, protocol.temperature, protocol.rounds
    # A run of ours says itself what it is.
    reading = row.reading(env) if args.run is None else {}
    settings = {"env_kwargs": protocol.env_kwargs, **({"policy_kwargs": reading} if reading else {})}
    # Shared settings were refused, but for how a policy of the user's is read, which the user knows.
    flags.params = as_pairs(deep_merge(settings, key_values(args.params)))
    return plan_rollout(flags, episodes=_episodes(row, args), as_published=True)


def _weights_lines(row: PublishedRow, envs: tuple[str, ...], args: argparse.Namespace) -> list[str]:
    from zoo.training.start_weights import start_parts  # brings torch

    if args.run is not None:
        return [f"weights      {args.run}"]
    lines: dict[str, None] = {}
    for env in envs:
        try:
            policy = args.policy or row.start_policy(env)
        except BadValue as error:
            return [f"weights      {error}"]
        name, kwargs = acting_settings(env, policy)
        if args.policy is not None:
            name = policy_path(name)
            kwargs = {**kwargs, **given_settings(args.params).get("policy_kwargs", {})}
        _check_whole(name, {"family": row.family, **kwargs})
        lines |= dict.fromkeys(f"{part.role:<12} {part.line()}" for part in start_parts(name, kwargs))
    return list(lines) or [f"weights      {args.policy}, fresh"]


def _check_whole(policy: str, kwargs: Mapping[str, Any]) -> None:
    """Raise `BadValue` where all parts of a policy are here and a file of theirs is missing or damaged."""
    from zoo.training.start_weights import check_files, start_parts

    folders = [part.folder for part in start_parts(policy, kwargs)]
    if folders and folders[0] is not None and None not in folders:
        check_files(folders[0], Request(family=kwargs.get("family"), base=kwargs.get("base")))


def acting_settings(env: str, policy: str) -> tuple[str, Mapping[str, Any]]:
    """Return the checkpoint that a policy's name means where it acts, and the settings that name its parts."""
    block = acting_recipe(env, policy).get("policy", {}) if policy in FAMILIES else {}
    return block.get("checkpoint", policy), {name: block[name] for name in ("revision", "base") if name in block}


# Training ---------------------------------------------------------------------------------------------------


def resolve_published(args: argparse.Namespace) -> RunConfig:
    """Return the run of a row's recipe; raises `BadValue` for flags and weights that ask for another."""
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
    config = resolve_new_run(args)
    family = config.entry.rpartition("/")[2]
    if family != row.recipe.policy:
        _check_whole(config.policy, config.policy_kwargs)  # half a download may not show its family
        raise BadValue(
            f"--published {row.name} trains {row.recipe.policy}, and '{config.policy}' is read as {family}; give "
            f"weights of {row.recipe.policy}, or leave out --published"
        )
    return config


def recipe_lines(row: PublishedRow, env: str | None = None) -> list[str]:
    """Return the hardware that the source assumed, and what our recipe comes to."""
    lines = [f"hardware     the source's: {row.hardware}"]
    if row.recipe is None:
        return [*lines, "recipe       none: the row was not trained by reward"]
    where = row.envs[0] if row.recipe.env == ANY_SUITE else row.recipe.env
    plan = recipe_plan(row.recipe.algo, env or where, row.recipe.policy)
    return [*lines, f"recipe       {row.recipe.algo} {plan.config.entry}, on one process:", *arithmetic_lines(plan)]


def recipe_plan(algo: str, env: str, family: str) -> RunPlan:
    """Return the plan of a recipe under its family's bare name, on one process."""
    recipe, benchmark = load_hyperparams(algo, env, family), find_benchmark(env)
    policy, own = find_policy(family, {}, lambda _: recipe.values.get("policy", {}), benchmark=benchmark)
    values = over_recipe(recipe.values, policy, own, {})
    config = build_config(algo=algo, env=env, policy=policy.name, values=values, seed=0, entry=recipe.entry)
    return RunPlan.resolve(config, 1)
