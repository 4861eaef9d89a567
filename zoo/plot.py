"""`vla-zoo plot --algo ppo grpo --env MetaWorld/reach`: learning curves of the runs under a log folder.

Shape letters: E episodes, P points on the horizontal axis, R runs.
"""

from __future__ import annotations

import math
import statistics
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vla_gym.errors import BadValue, VLAZooError, os_reason, shown
from vla_gym.registry import canonical_id
from zoo.cli.arguments import OneLineParser, count
from zoo.cli.main import guarded
from zoo.config.algorithm_configs import ALGORITHMS
from zoo.config.run_config import RunConfig
from zoo.evaluation.statistics import interquartile_interval, interquartile_mean, together
from zoo.files import atomic_file, quoted
from zoo.runs.folder import CONFIG_FILE, RunFolder, folder_name
from zoo.runs.lookup import find_run
from zoo.runs.monitor import Episodes, EvaluationPoint, read_episodes, read_evaluations
from zoo.runs.report_page import draw_evaluations, training_curve

X_LABELS = {"steps": "simulator steps", "episodes": "episodes", "time": "hours"}
Y_LABELS = {"success": "success", "reward": "return", "length": "episode length (simulator steps)"}
_POINTS = 200
_SHARED = 0.8
"""Of the horizontal axis, as much must all runs of a group cover to be shown by their mean alone."""


def parser() -> OneLineParser:
    """The flags of `vla-zoo plot`, as in rl_zoo3's `plot_train`."""
    p = OneLineParser(
        "vla-zoo plot",
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
            f"'{run.path}' is a run of vla-zoo {config.algo}, which plays no training episodes; plot draws runs of "
            f"{' and '.join(ALGORITHMS)}. Its own curves: vla-zoo report -i {quoted(run.path)}"
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


def _named_runs(args: Namespace) -> list[RunFolder]:
    for flag, given in (("-a", args.algo), ("-e", args.env), ("-f", args.log_folder)):
        if given is not None:
            raise BadValue(
                f"{flag} chooses among the runs of a log folder, but runs are named: {shown(' '.join(args.runs))}; "
                f"leave out {flag} or the runs"
            )
    return list({run.path.resolve(): run for run in map(find_run, args.runs)}.values())


def _found_runs(args: Namespace) -> list[RunFolder]:
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


# Drawing ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RunCurves:
    """A run with its curves."""

    config: RunConfig
    episodes: Episodes
    evaluations: Sequence[EvaluationPoint]


def draw_runs(runs: Sequence[RunCurves], *, x_axis: str, y_axis: str, window: int, output: Path) -> None:
    """Write an image: per environment and algorithm the interquartile mean over its runs with a bootstrap interval.

    Evaluations of all runs together stand on the curves of success.

    Raises `BadValue` for a file that cannot be written.
    """
    from matplotlib.colors import TABLEAU_COLORS
    from matplotlib.figure import Figure

    # By name: `C0` and `C1` would be whatever another library has made of matplotlib's cycle.
    colours = dict(zip(ALGORITHMS, TABLEAU_COLORS, strict=False))
    groups: dict[str, dict[str, list[RunCurves]]] = {}
    for curves in runs:
        groups.setdefault(curves.config.env, {}).setdefault(curves.config.algo, []).append(curves)
    columns = 1 if len(groups) <= 3 else 2
    rows = math.ceil(len(groups) / columns)
    figure = Figure(figsize=(6.4 * columns, 0.6 + 3.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in panels[len(groups) :]:
        unused.set_axis_off()
    for axes, (env, by_algo) in zip(panels, groups.items(), strict=False):
        for algo, members in by_algo.items():
            _draw_group(axes, members, colours[algo], algo, x_axis=x_axis, y_axis=y_axis, window=window)
        axes.set(title=env, xlabel=X_LABELS[x_axis], ylabel=Y_LABELS[y_axis])
        if y_axis == "success":
            axes.set_ylim(-0.02, 1.02)
        axes.grid(alpha=0.3)
        axes.legend()
    try:
        with atomic_file(output) as partial:
            figure.savefig(partial, format=output.suffix.removeprefix(".") or "png")
    except (OSError, ValueError) as error:
        reason = os_reason(error) if isinstance(error, OSError) else error
        raise BadValue(f"cannot write '{output}': {reason}") from error


def _draw_group(
    axes: Any, runs: Sequence[RunCurves], colour: str, algo: str, *, x_axis: str, y_axis: str, window: int
) -> None:
    curves = []
    for run in runs:
        episodes = run.episodes
        x = {"steps": episodes.steps, "time": episodes.seconds / 3600, "episodes": 1 + np.arange(len(episodes.steps))}
        y_E = training_curve(episodes, getattr(episodes, y_axis), window=window, num_envs=run.config.num_envs)
        curves.append((x[x_axis], y_E))
    longest = max((x_E[-1] for x_E, _ in curves if len(x_E)), default=0.0)
    point_P = np.linspace(0, longest, _POINTS)
    y_RP = np.array([at_points(x_E, y_E, point_P) for x_E, y_E in curves if np.isfinite(y_E).any()]).reshape(
        -1, _POINTS
    )
    # Where every run has episodes; runs of other lengths are a line each.
    begun_P = np.isfinite(y_RP).all(axis=0)
    if begun_P.sum() < _SHARED * np.isfinite(y_RP).any(axis=0).sum():
        for y_P in y_RP:
            axes.plot(point_P, y_P, color=colour, alpha=0.4, linewidth=1)
    point_P, y_RP = point_P[begun_P], y_RP[:, begun_P]
    label = f"{algo}, {len(runs)} run{'s' if len(runs) != 1 else ''}"
    evaluated = pooled([run.evaluations for run in runs]) if (x_axis, y_axis) == ("steps", "success") else []
    # Where both are drawn the evaluations are the result, and training stands behind them.
    mean_P = interquartile_mean(y_RP) if len(y_RP) else [math.nan] * len(point_P)
    axes.plot(point_P, mean_P, color=colour, label=f"{label}, training", alpha=0.5 if evaluated else 1.0)
    if len(y_RP) > 1 and len(point_P):
        low_P, high_P = interquartile_interval([y_RP])
        axes.fill_between(point_P, low_P, high_P, color=colour, alpha=0.2, linewidth=0)
    draw_evaluations(axes, evaluated, color=colour, fmt="o-", label=f"{label}, evaluated")


def at_points(x_E: np.ndarray, y_E: np.ndarray, point_P: np.ndarray) -> np.ndarray:
    """The latest y at or before each point, float64 `[P]`; nan before the first x and past the last, which ascend."""
    if not len(x_E):
        return point_P * np.nan
    index_P = np.searchsorted(x_E, point_P, side="right") - 1
    return np.where((index_P >= 0) & (point_P <= x_E[-1]), y_E[np.maximum(index_P, 0)], np.nan)


def pooled(evaluations: Sequence[Sequence[EvaluationPoint]]) -> list[EvaluationPoint]:
    """Return evaluations of several runs at about the same steps counted together, at their mean step; ascending.

    A run is evaluated at its first update past a multiple of steps, which other runs reach some steps earlier or later.
    Counted together are evaluations of different runs that are no further apart than half the way to the next
    evaluation, or the one before, of either run.
    """
    placed: list[tuple[int, float, int, EvaluationPoint]] = []  # (steps, half the way to the nearest other, run, point)
    for run, points in enumerate(evaluations):
        gaps = np.diff([0, *(point.steps for point in points), np.inf])
        placed += [(point.steps, min(gaps[at : at + 2]) / 2, run, point) for at, point in enumerate(points)]
    groups: list[list[tuple[int, float, int, EvaluationPoint]]] = []
    for steps, reach, run, point in sorted(placed, key=lambda one: one[0]):
        last = groups[-1] if groups else []
        if last and all(run != other[2] and steps - other[0] <= min(reach, other[1]) for other in last):
            last.append((steps, reach, run, point))
        else:
            groups.append([(steps, reach, run, point)])
    return [
        EvaluationPoint(
            steps=round(statistics.fmean(one[0] for one in group)),
            rate=together("evaluation", [one[3].rate for one in group]),
        )
        for group in groups
    ]


if __name__ == "__main__":
    raise SystemExit(guarded(run))
