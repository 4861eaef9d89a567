"""Robustness: success where one thing of the environment is changed, as LIBERO-PRO and LIBERO-Plus do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue, MissingDependency
from vla_gym.registry import canonical_id, find_benchmark, list_envs
from zoo.evaluation.statistics import Rate

EPISODES_OF_AXIS = 50
"""Episodes of each axis where no budget is given."""
BENCHMARKS = ("PRO", "Plus")


def axes_of(env: str) -> tuple[list[str], list[str]]:
    """Return the environment and its changed forms that can be played here, and why others cannot.

    Raises `BadValue` for one that has none.
    """
    listed, missing = list_envs(), {}
    axes = [name for kind in BENCHMARKS for name in listed if name.startswith(f"{canonical_id(env)}-{kind}-")]
    if not axes:
        has = [name.partition("-PRO-lan")[0] for name in listed if name.endswith("-PRO-lan")]
        raise BadValue(f"--robustness plays LIBERO-PRO's and LIBERO-Plus's axes of {', '.join(has)}, got --env {env}")
    for name in axes:
        try:
            find_benchmark(name)
        except MissingDependency as error:
            missing[name] = str(error)
    why = [f"{', '.join(missing)}: {next(iter(missing.values()))}"] if missing else []
    return [env, *(name for name in axes if name not in missing)], why


def shares(axes: Sequence[str], episodes: int | None) -> dict[str, int]:
    """Return the episodes of each axis: an even part of the budget; the first ones get one more if it does not divide.

    Raises `BadValue` for a budget below one episode an axis.
    """
    budget = EPISODES_OF_AXIS * len(axes) if episodes is None else episodes
    if budget < len(axes):
        raise BadValue(f"--robustness needs an episode for each of {len(axes)} axes, got --eval-episodes {budget}")
    return {name: (budget + len(axes) - 1 - index) // len(axes) for index, name in enumerate(axes)}


def robustness_table(rates: Sequence[Rate]) -> str:
    """Return a line for each axis, the unchanged environment first, and how far success is from it."""
    lines = ["success    95 % interval      k/n     change  axis"]
    for rate in rates:
        interval = "[{:.1%}, {:.1%}]".format(*rate.interval)
        change = "" if rate is rates[0] else f"{100 * (rate.mean - rates[0].mean):+.1f}"
        counts = f"{rate.successes}/{rate.episodes}"
        lines.append(f"{rate.mean:>7.1%}    {interval:<15}  {counts:>7}    {change:>7}  {rate.label}")
    return "\n".join(lines)


def draw_robustness(figure: Any, rates: Sequence[Rate]) -> None:
    """Draw a bar with its interval for each axis on a matplotlib figure, and the unchanged success as a line."""
    axes, means = figure.subplots(), [rate.mean for rate in rates]
    ends = [[abs(rate.interval[end] - rate.mean) for rate in rates] for end in (0, 1)]
    colours = ["#8b949e", *["#2f81f7"] * (len(rates) - 1)]
    axes.barh(range(len(rates)), means, xerr=ends, color=colours, capsize=3, ecolor="#57606a")
    axes.axvline(means[0], color="#8b949e", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(rates)), [rate.label for rate in rates])
    axes.set(xlim=(0, 1), ylim=(len(rates) - 0.4, -0.6), xlabel="success, 95 % interval")
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")


def write_picture(rates: Sequence[Rate], path: Path) -> None:
    """Write the bars as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 0.8 + 0.35 * len(rates)), layout="constrained")
    draw_robustness(figure, rates)
    figure.savefig(path, dpi=130)
