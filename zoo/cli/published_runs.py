"""`--published NAME` of `zoo.evaluate` and `zoo.train`: a published row's protocol and recipe put into the flags."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue
from vla_gym.registry import find_benchmark
from vla_gym.system.writable_paths import check_destination
from zoo.cli.agent import RolloutPlan, plan_rollout
from zoo.cli.arguments import as_pairs, flag_of
from zoo.cli.measuring import measure, partial_file, weights_of, write_or_print
from zoo.cli.published_comparison import comparison_lines, comparison_record, protocol_lines
from zoo.config.published import ANY_SUITE, PublishedRow, find_published
from zoo.config.run_config import benchmark_options
from zoo.evaluation.evaluator import EpisodeRecord

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


def row_lines(row: PublishedRow) -> list[str]:
    """Return how a row is measured."""
    return protocol_lines(row, _starts(row, row.envs, None), _grid(row))


# Evaluation -----------------------------------------------------------------------------------------------


def evaluate_published(args: argparse.Namespace) -> int:
    """Evaluate by a row's protocol and print each published figure beside ours; with `--dry-run` only say how."""
    row = find_published(args.published)
    if given := next((name for name in _SET_BY_ROW if getattr(args, name)), None):
        raise BadValue(f"{flag_of(given)} is the protocol's, and --published {row.name} sets it; leave one out")
    envs = _chosen_envs(row, args.env)
    print("\n".join(protocol_lines(row, _starts(row, envs, args.eval_episodes), _grid(row))), flush=True)
    if args.dry_run:
        print("\n".join([*_weights_lines(row, envs, args), *recipe_lines(row)]))
        print("dry run      nothing was started or written")
        return 0
    output = check_destination(Path(args.output or f"results_{row.name}.json"))
    plans = {env: plan_rollout(_flags(args, row, env), episodes=_episodes(row, args)) for env in envs}
    measured, records = {}, {}
    for env, plan in plans.items():
        table, record = _measured(plan, args, output)
        print(table, flush=True)
        tasks = find_benchmark(plan.env, **benchmark_options(plan.env_options)).tasks
        measured[env] = [EpisodeRecord(**episode) for episode in record["episodes"]], tasks
        records[env] = record
    print("\n".join(comparison_lines(row, measured)))
    write_or_print(output, json.dumps({"published": comparison_record(row, measured), "results": records}, indent=2))
    print(f"written to {output}")
    return 0


def _measured(plan: RolloutPlan, args: argparse.Namespace, output: Path) -> tuple[str, Mapping[str, Any]]:
    return measure(
        plan,
        weights=weights_of(plan),
        partial=partial_file(output),
        device=args.device,
        num_threads=args.num_threads,
        seed=args.seed,
        progress=args.progress,
    )


def _chosen_envs(row: PublishedRow, env: str | None) -> tuple[str, ...]:
    if env is None:
        return row.envs
    if env not in row.envs:
        raise BadValue(f"--published {row.name} is of {', '.join(row.envs)}, got --env {env}")
    return (env,)


def _episodes(row: PublishedRow, args: argparse.Namespace) -> int | None:
    return row.protocol.start_states if args.eval_episodes is None else int(args.eval_episodes)


def _grid(row: PublishedRow) -> dict[str, int]:
    options = row.protocol.env_kwargs
    return {env: sum(task.num_trials for task in find_benchmark(env, **options).tasks) for env in row.envs}


def _starts(row: PublishedRow, envs: tuple[str, ...], episodes: int | None) -> dict[str, int]:
    grid = _grid(row)
    return {env: min(grid[env], episodes or row.protocol.start_states or grid[env]) for env in envs}


def _flags(args: argparse.Namespace, row: PublishedRow, env: str) -> argparse.Namespace:
    """Return the flags of an evaluation in one environment by the row's protocol."""
    flags, protocol = copy(args), row.protocol
    flags.env = env
    if args.run is None and args.policy is None:
        flags.policy = row.start_policy(env)
    flags.stochastic, flags.temperature, flags.rounds = protocol.sample, protocol.temperature, protocol.rounds
    settings: dict[str, Any] = {"env_kwargs": dict(protocol.env_kwargs)}
    # A run of ours says itself what it is.
    if args.run is None and (reading := row.reading(env)):
        settings["policy_kwargs"] = reading
    flags.params = [*as_pairs(settings), *args.params]
    return flags


def _weights_lines(row: PublishedRow, envs: tuple[str, ...], args: argparse.Namespace) -> list[str]:
    from zoo.cli.recipe_start import acting_settings  # brings torch
    from zoo.training.start_weights import start_parts

    given = args.run or args.policy
    if given is not None:
        return [f"weights      {given}"]
    lines: dict[str, None] = {}
    for env in envs:
        try:
            policy = row.start_policy(env)
        except BadValue as error:
            return [f"weights      {error}"]
        name, kwargs = acting_settings(env, policy)
        lines |= dict.fromkeys(f"{part.role:<12} {part.line()}" for part in start_parts(name, kwargs))
    return list(lines)


# Training ---------------------------------------------------------------------------------------------------


def train_published(args: argparse.Namespace) -> None:
    """Put a row's recipe into the flags of `zoo.train`; raises `BadValue` for flags that ask for another."""
    row = find_published(args.published)
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


def recipe_lines(row: PublishedRow, env: str | None = None) -> list[str]:
    """Return the hardware that the source assumed, and what our recipe comes to."""
    lines = [f"hardware     the source's: {row.hardware}"]
    if row.recipe is None:
        return [*lines, "recipe       none: the row was not trained by reward"]
    from zoo.cli.recipe_start import recipe_plan
    from zoo.training.run_plan import arithmetic_lines  # brings torch

    where = row.envs[0] if row.recipe.env == ANY_SUITE else row.recipe.env
    plan = recipe_plan(row.recipe.algo, env or where, row.recipe.policy)
    return [*lines, f"recipe       {row.recipe.algo} {plan.config.entry}, on one process:", *arithmetic_lines(plan)]
