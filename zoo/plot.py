"""`python -m zoo.plot --algo ppo grpo --env MetaWorld/reach`: learning curves of the runs under a log folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vla_gym.errors import BadValue, VLAZooError, shown
from vla_gym.registry import canonical_id
from zoo.cli.arguments import OneLineParser, count
from zoo.cli.main import guarded
from zoo.config.algorithm_configs import ALGORITHMS
from zoo.evaluation.statistics import interquartile_interval, interquartile_mean
from zoo.files import quoted
from zoo.runs.charts import X_LABELS, Y_LABELS, RunCurves, draw_runs
from zoo.runs.folder import CONFIG_FILE, RunFolder, folder_name
from zoo.runs.lookup import find_run
from zoo.runs.monitor import read_episodes, read_evaluations


def parser() -> OneLineParser:
    """The flags of `zoo.plot`, as in rl_zoo3's `plot_train`."""
    p = OneLineParser(
        "zoo.plot",
        "Learning curves: a panel per environment, a line per algorithm, the interquartile mean of its runs with a "
        "95 % bootstrap interval.",
    )
    p.add_argument("runs", nargs="*", metavar="RUN", help="run folders (default: all under -f that fit -a and -e)")
    p.add_argument("-a", "--algo", nargs="+", type=str.lower, choices=list(ALGORITHMS), help="default: all")
    p.add_argument("-e", "--env", nargs="+", type=canonical_id, metavar="ID", help="environment ids (default: all)")
    p.add_argument("-f", "--log-folder", metavar="DIR", help="where runs are (default: logs)")
    p.add_argument("-x", "--x-axis", choices=list(X_LABELS), default="steps", help="default: steps")
    p.add_argument("-y", "--y-axis", choices=list(Y_LABELS), default="success", help="default: success")
    p.add_argument(
        "-w",
        "--episode-window",
        type=count,
        default=100,
        metavar="N",
        help="episodes averaged (default: 100)",
    )
    p.add_argument(
        "-o",
        "--output",
        default="learning_curves.png",
        metavar="FILE",
        help="png (also without an ending), svg or pdf (default: %(default)s)",
    )
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    runs = [read(named) for named in _named_runs(args)] if args.runs else _readable(_found_runs(args))
    output = Path(args.output)
    if not output.suffix and not output.exists():
        output = Path(f"{args.output}.png")  # matplotlib would, and not say so
    draw_runs(runs, x_axis=args.x_axis, y_axis=args.y_axis, window=args.episode_window, output=output)
    print("\n".join([*final_lines(runs), f"{len(runs)} run{'s' if len(runs) != 1 else ''} drawn into {output}"]))
    return 0


def read(run: RunFolder) -> RunCurves:
    """Read the curves of a run; raises `BadValue` when it cannot be read."""
    config = run.config()
    if config.algo not in ALGORITHMS:
        raise BadValue(
            f"'{run.path}' is a run of zoo.{config.algo}, which plays no training episodes; zoo.plot draws runs of "
            f"{' and '.join(ALGORITHMS)}. Its own curves: python -m zoo.report -i {quoted(run.path)}"
        )
    return RunCurves(config=config, episodes=read_episodes(run), evaluations=read_evaluations(run))


def _readable(found: Sequence[RunFolder]) -> list[RunCurves]:
    """Return the curves of the runs that can be read, warn of the others; raises `BadValue` when none can."""
    read_runs, reason = [], ""
    for folder in found:
        try:
            read_runs.append(read(folder))
        except VLAZooError as error:
            reason = " ".join(str(error).split())
            print(f"warning: left out: {reason}", file=sys.stderr)
    if not read_runs:
        raise BadValue(f"none of {len(found)} runs can be read; the last one: {reason}")
    return read_runs


def _named_runs(args: argparse.Namespace) -> list[RunFolder]:
    for flag, given in (("-a", args.algo), ("-e", args.env), ("-f", args.log_folder)):
        if given is not None:
            raise BadValue(
                f"{flag} chooses among the runs of a log folder, but runs are named: {shown(' '.join(args.runs))}; "
                f"leave out {flag} or the runs"
            )
    return list({run.path.resolve(): run for run in map(find_run, args.runs)}.values())


def _found_runs(args: argparse.Namespace) -> list[RunFolder]:
    algos = list(dict.fromkeys(args.algo or ALGORITHMS))
    log_folder = Path("logs" if args.log_folder is None else args.log_folder)
    folders = [RunFolder(path) for algo in algos for path in sorted((log_folder / algo).glob("*_*"))]
    found = [folder for folder in folders if (folder.path / CONFIG_FILE).is_file()]
    names = None if args.env is None else [folder_name(env) for env in args.env]
    fitting = [folder for folder in found if names is None or folder.path.name.rpartition("_")[0] in names]
    if not fitting:
        there = ", ".join(sorted({f"{folder.path.parent.name}/{folder.path.name}" for folder in found})) or "no runs"
        raise BadValue(
            f"no run of {' or '.join(algos)} on {' or '.join(args.env or ['any environment'])} under "
            f"'{log_folder}'; there: {there}"
        )
    return fitting


def final_lines(runs: Sequence[RunCurves]) -> list[str]:
    """Return a line per algorithm of several runs: the interquartile mean of their last evaluations."""
    final: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        if run.evaluations:
            by_env = final.setdefault(run.config.algo, {})
            by_env.setdefault(run.config.env, []).append(run.evaluations[-1].rate.mean)
    lines = []
    for algo, by_env in final.items():
        strata = [np.array(rates) for rates in by_env.values()]
        if sum(map(len, strata)) < 2:
            continue
        middle = float(interquartile_mean(np.concatenate(strata)))
        low, high = (float(bound) for bound in interquartile_interval(strata))
        lines.append(
            f"{algo}: last evaluations {middle:.1%} [{low:.1%}, {high:.1%}], interquartile mean of "
            f"{sum(map(len, strata))} runs on {len(strata)} environment{'s' if len(strata) != 1 else ''} with a 95 % "
            "bootstrap interval over runs"
        )
    return lines


if __name__ == "__main__":
    raise SystemExit(guarded(run))
