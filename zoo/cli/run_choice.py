"""Which run, or which checkpoint of it, the flags `-i`, `--env`, `--algo`, `--exp-id` and `--load-...` mean."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from vla_gym.errors import BadValue
from vla_gym.registry import find_benchmark
from vla_gym.system.extras import install_command
from zoo.cli.arguments import RUN_ALGORITHMS, flag_of
from zoo.config.gym_packages import import_named_packages, packages_flag
from zoo.hub.download import is_remote
from zoo.runs.folder import RunFolder, folder_name, holds_policy
from zoo.runs.lookup import agents_folder, agents_for, find_run, newest_run

_OF_RUNS = ("algo", "exp_id", "load_best", "load_checkpoint", "load_last_checkpoint")


def chosen_run(args: argparse.Namespace) -> str | None:
    """Return `-i`, given or found by the flags of `zoo.cli.shared_flags.add_run_arguments`; None with `--policy`.

    Raises `BadValue` for flags that do not go together, a run that is not there and a checkpoint it does not have.
    """
    import_named_packages(args)
    chooses = next((name for name in _OF_RUNS if getattr(args, name)), None)
    by_name = args.policy is not None and args.run is None
    if chooses is not None and (by_name or (args.run is not None and chooses in ("algo", "exp_id"))):
        other = f"--policy {args.policy}" if by_name else f"-i {args.run}"
        raise BadValue(f"{flag_of(chooses)} chooses among the runs under -f; leave it or {other} out")
    if by_name:
        return None
    run = args.run if args.run is not None else _found_run(args)
    if not (args.load_best or args.load_checkpoint or args.load_last_checkpoint):
        return str(run)
    if is_remote(run):
        raise BadValue(
            f"--load-... is for run folders here, got the Hub id '{run}'; fetch it: vla-zoo load_from_hub {run}"
        )
    return str(_checkpoint(find_run(run), args))


def _found_run(args: argparse.Namespace) -> str:
    """Return the newest run of `--env` (or number `--exp-id`) under the log folder, else a trained agent."""
    if args.env is None:
        raise BadValue(
            "give --env ID (its newest run), or either -i RUN (a trained policy) or --policy NAME (a family, a folder)"
        )
    find_benchmark(args.env)
    algos = RUN_ALGORITHMS if args.algo is None else (args.algo,)
    if args.exp_id:
        return str(_numbered_run(args, algos))
    found = newest_run(Path(args.log_folder), algos, args.env)
    if found is not None:
        return str(found.path)
    if shipped := [agent for agent in agents_for(args.env) if agent.split("/")[1] in algos]:
        return shipped[0]
    agents = (
        "no trained agent" if agents_folder() else f"the trained agents are not installed ({install_command('agents')})"
    )
    train = f"vla-zoo train{packages_flag(args.gym_packages)} --algo {args.algo or 'ppo'} --env {args.env}"
    raise BadValue(
        f"no run of {args.env} under '{args.log_folder}' ({', '.join(algos)}) and {agents}. "
        f"Train one: {train}; or give -i RUN or --policy NAME"
    )


def _numbered_run(args: argparse.Namespace, algos: Sequence[str]) -> Path:
    name = folder_name(args.env)
    runs = sorted(folder for algo in algos for folder in Path(args.log_folder, algo).glob(f"{name}_*"))
    found = [folder for folder in runs if folder.name == f"{name}_{args.exp_id}"]
    if len(found) == 1:
        return found[0]
    if found:
        raise BadValue(f"--exp-id {args.exp_id} of {args.env} is {' and '.join(map(str, found))}; say --algo")
    raise BadValue(
        f"no run {args.exp_id} of {args.env} under '{args.log_folder}' ({', '.join(algos)}); there: "
        f"{', '.join(map(str, runs[:12])) or 'none'}"
    )


def _checkpoint(run: RunFolder, args: argparse.Namespace) -> Path:
    if args.load_best:
        if not holds_policy(run.best):
            raise BadValue(f"run '{run.path}' has no policy in best/; try --load-last-checkpoint")
        return run.best
    steps = run.saved_steps()
    step = args.load_checkpoint or (steps[-1] if steps else None)
    if step not in steps:
        raise BadValue(
            f"run '{run.path}' has no checkpoint{f' at {step} steps' if step else ''}, but at "
            f"{', '.join(map(str, steps)) or 'none'}; without --load-... its best policy acts"
        )
    return run.checkpoint(step)
