"""`vla-zoo published`: published result rows, and what was reproduced; `vla-zoo evaluate --published` plays one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from importlib.metadata import version
from pathlib import Path

from vla_gym.errors import BadValue, VLAZooError
from vla_gym.reading import user_path
from vla_gym.registry import find_benchmark
from vla_gym.system.paths import check_destination
from vla_policies.checkpoint_io.hub import local_folder
from zoo.agents.agent import Agent
from zoo.agents.measuring import measure, partial_file, weights_of, write_or_print
from zoo.cli.agent import OF_POLICY, given_settings, plan_rollout
from zoo.cli.arguments import OneLineParser, as_pairs, flag_of, is_given, key_values
from zoo.cli.main import guarded
from zoo.config.hyperparams import deep_merge
from zoo.config.run_config import benchmark_options, env_options
from zoo.config.settings import Settings, yaml_line
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.evaluation.published import (
    PublishedRow,
    comparison_lines,
    comparison_record,
    find_published,
    protocol_lines,
    published_rows,
)
from zoo.evaluation.reproduced import reproductions, submit
from zoo.files import quoted
from zoo.runs.folder import describe_machine

_SET_BY_ROW = (
    *("stochastic", "deterministic", "temperature", "top_k", "rounds", "split", "algo", "exp_id", "instructions"),
)
"""Flags of `vla-zoo evaluate` that the row's protocol decides."""
_OF_ROWS = {"split": None, "instructions": None}
"""Settings in `-params` that every row decides."""


def parser() -> OneLineParser:
    """The flags of `vla-zoo published`."""
    p = OneLineParser(
        "vla-zoo published", "Published result rows: figures, protocol, recipe, and what was reproduced here."
    )
    p.add_argument("name", nargs="?", help="a row: all that is known of it")
    p.add_argument(
        "--submit", metavar="FILE", help="check a result of vla-zoo evaluate --published and add its row to results/"
    )
    return p


def table(rows: Iterable[PublishedRow]) -> list[str]:
    """Return a line for each row, and how many have been reproduced."""
    listed, measured = list(rows), reproductions()
    width = max(len(row.name) for row in listed)
    lines = [f"{'row':<{width}}  {'actions':<14}  {'recipe':<34}  figures"]
    for row in listed:
        actions = "fresh noise" if row.fresh_noise else "deterministic"
        if row.protocol.sample:
            actions = f"sampled at {row.protocol.temperature:g}"
        recipe = "-" if row.recipe is None else f"{row.recipe.algo} {row.recipe.env} {row.recipe.policy}"
        figures = ", ".join(f"{figure.label} {figure.percent:g}" for figure in row.figures)
        lines.append(f"{row.name:<{width}}  {actions:<14}  {recipe:<34}  {figures}")
        lines += [f"{'':<{width}}  measured: {one.summary}" for one in measured.get(row.name, ())]
    done = sum(any(one.reproduces(row) for one in measured.get(row.name, ())) for row in listed)
    return [*lines, f"{done} of {len(listed)} rows reproduced here"]


def details(row: PublishedRow) -> list[str]:
    """Return all that is known of one row."""
    return [
        *protocol_lines(row),
        f"hardware     {row.hardware}",
        *(
            f"weights      {name}"
            for name in dict.fromkeys(row.weights.values()) or ["none that can be read here were published"]
        ),
        *(f"figure       {figure.label}: {figure.percent:g} %" for figure in row.figures),
        *(f"measured     {one.summary}, {one.date}" for one in reproductions().get(row.name, ())),
    ]


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    if args.submit is not None:
        if args.name is not None:
            raise BadValue(f"--submit takes the row's name from the file; leave '{args.name}' out")
        path = submit(user_path(args.submit), Path("results"))
        print(f"written to {path}: commit it, open a pull request, and attach '{args.submit}' there")
        return 0
    print("\n".join(table(published_rows().values()) if args.name is None else details(find_published(args.name))))
    return 0


def evaluate_published(args: argparse.Namespace) -> int:
    """Evaluate by a row's protocol and print each published figure beside ours; with `--dry-run` only say how."""
    row = find_published(args.published)
    _check_flags(args, row)
    if args.env is not None and args.env not in row.envs:
        raise BadValue(f"--published {row.name} is of {', '.join(row.envs)}, got --env {args.env}")
    envs = row.envs if args.env is None else (args.env,)
    options = benchmark_options(env_options(given_settings(args.params)))
    own = {name: value for name, value in options.items() if name not in OF_POLICY}
    print("\n".join(protocol_lines(row, envs, args.eval_episodes, own)), flush=True)
    if own:
        print(f"besides      {yaml_line(own)}: yours, and not of the published protocol", flush=True)
    if args.dry_run:
        refused = _refusals(row, envs, args)
        print("\n".join([*_weights_lines(row, envs, args), *refused, f"hardware     the source's: {row.hardware}"]))
        print("dry run      nothing was started or written")
        return 0
    for env in envs:
        find_benchmark(env, **row.protocol.env_kwargs)  # raises for missing files before weights are fetched
    output = check_destination(Path(args.output or f"results_{row.name}.json"))
    plans = {env: _plan(args, row, env) for env in envs}
    measured, records = {}, {}
    for env, planned in plans.items():
        plan = planned.fetched()
        table, record = measure(plan, weights=weights_of(plan), partial=partial_file(output), progress=args.progress)
        print(table, flush=True)
        tasks = find_benchmark(plan.env, **benchmark_options(plan.env_options)).tasks
        measured[env] = [EpisodeRecord(**episode) for episode in record["episodes"]], tasks
        records[env] = record
    print("\n".join(comparison_lines(row, measured)))
    compared = {
        "published": comparison_record(row, measured),
        "machine": describe_machine(args.device),
        "versions": {name: version(name) for name in ("torch", "transformers")},
        "results": records,
    }
    write_or_print(output, json.dumps(compared, indent=2))
    print(f"written to {output}; to add the row: vla-zoo published --submit {quoted(output)}")
    return 0


def _check_flags(args: argparse.Namespace, row: PublishedRow) -> None:
    given = [flag_of(name) for name in _SET_BY_ROW if is_given(args, name)]
    own_weights = args.run is None and args.policy is None
    decided = {
        **_OF_ROWS,
        "env_kwargs": {**_OF_ROWS, **row.protocol.env_kwargs},
        "policy_kwargs": {"temperature": None, "top_k": None, **(row.reading(row.envs[0]) if own_weights else {})},
    }
    for name, value in given_settings(args.params).items():
        former = decided.get(name)
        if isinstance(value, Mapping) and isinstance(former, Mapping):
            given += [
                f"-params {name}:{{{inner}}}" for inner in value if inner in former and inner != "backbone_kwargs"
            ]
        elif name in decided:
            given.append(f"-params {name}")
    if given:
        raise BadValue(f"{given[0]} is the protocol's, and --published {row.name} sets it; leave it out")


def _plan(args: argparse.Namespace, row: PublishedRow, env: str) -> Agent:
    flags, protocol = copy(args), row.protocol
    flags.env = env
    if args.run is None and args.policy is None:
        flags.policy = row.start_policy(env)
    flags.stochastic, flags.temperature, flags.rounds = protocol.sample, protocol.temperature, protocol.rounds
    # A run of ours says itself what it is.
    reading = row.reading(env) if args.run is None else {}
    settings: Settings = {"env_kwargs": protocol.env_kwargs, **({"policy_kwargs": reading} if reading else {})}
    # Shared settings were refused, but for how a policy of the user's is read, which the user knows.
    flags.params = as_pairs(deep_merge(settings, key_values(args.params)))
    episodes = protocol.start_states if args.eval_episodes is None else args.eval_episodes
    return plan_rollout(flags, episodes=episodes, as_published=True)


def _refusals(row: PublishedRow, envs: Sequence[str], args: argparse.Namespace) -> list[str]:
    """Return what the evaluation would refuse, as far as its files are here: stand-ins, statistics, a head."""
    found = []
    for env in envs:
        name = args.policy or row.weights.get(env, "")
        try:
            find_benchmark(env, **row.protocol.env_kwargs)
            if args.run or local_folder(name):
                _plan(args, row, env)
        except VLAZooError as error:
            found.append(f"refused      {error}")
    return list(dict.fromkeys(found))


def _weights_lines(row: PublishedRow, envs: tuple[str, ...], args: argparse.Namespace) -> list[str]:
    try:
        names = [args.run or args.policy or row.weights.get(env) or row.start_policy(env) for env in envs]
    except BadValue as error:
        return [f"weights      {error}"]
    return [f"weights      {name}" for name in dict.fromkeys(names)]


if __name__ == "__main__":
    raise SystemExit(guarded(run))
