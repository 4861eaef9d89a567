"""A published row beside our own episodes: each printed figure, ours, and whether chance explains the difference."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from vla_gym.specs import Task
from zoo.config.published import Figure, PublishedRow
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.evaluation.statistics import binomial_exact, mean_of_rates, overall_rate, rates_by_suite

Measured = Mapping[str, tuple[Sequence[EpisodeRecord], Sequence[Task]]]
"""Environment id -> its episodes, and its tasks."""


def protocol_lines(row: PublishedRow, starts: Mapping[str, int], grid: Mapping[str, int]) -> list[str]:
    """Return how a row is measured; `starts` are the start states of each environment to play, of so many in `grid`."""
    protocol = row.protocol
    actions = "deterministic (do_sample false)"
    if protocol.sample:
        actions = f"sampled (do_sample true), temperature {protocol.temperature:g}"
    wanted = sum(starts.values())
    whole = sum(protocol.start_states or grid[env] for env in starts)
    part = "all of it" if wanted == whole else f"{wanted:,} of its {whole:,} start states"
    horizon = "-".join(str(steps) for steps in (row.horizon[0], row.horizon[-1])[: len(row.horizon)])
    kwargs = ", ".join(f"{name} {value}" for name, value in protocol.env_kwargs.items())
    return [
        f"published    {row.name}: {row.model}",
        f"source       {row.source}",
        f"actions      {actions}",
        f"episodes     {protocol.rounds} x {wanted:,} start states = {protocol.rounds * wanted:,} episodes on "
        f"{', '.join(starts)} ({part})",
        f"grid         {row.grid}",
        f"horizon      {horizon} steps, {row.settle_steps} settle steps ({kwargs})",
    ]


def comparison_lines(row: PublishedRow, measured: Measured) -> list[str]:
    """Return a line for each printed figure: it, ours with k/n, and the exact binomial test against it."""
    width = max(len(figure.label) for figure in row.figures)
    lines = [f"published    ours       k/n    {'':<{width}}  {row.name}"]
    ours: dict[str, float] = {}
    for figure in row.figures:
        lines.append(_line(figure, row, width, measured, ours))
    if row.protocol.rounds > 1:
        lines.append(
            f"p counts the {row.protocol.rounds} rounds of a start state as independent, which they are not quite"
        )
    return lines


def _line(figure: Figure, row: PublishedRow, width: int, measured: Measured, ours: dict[str, float]) -> str:
    head = f"{figure.percent:>8.2f}%"
    if figure.average is not None:
        mean = _average(figure, row, measured, ours)
        shown = "  not computed" if mean is None else f"{mean:>9.2f}%          "
        return f"{head}  {shown}  {figure.label:<{width}}  ({_RULES[figure.average]})"
    episodes = _episodes(figure, measured)
    if not episodes:
        return f"{head}  {'not played':>20}  {figure.label:<{width}}"
    rate = overall_rate(episodes)
    ours[figure.label] = 100 * rate.mean
    p = binomial_exact(rate.successes, rate.episodes, figure.percent / 100)
    counts = f"{rate.successes}/{rate.episodes}"
    test = f"p = {p:.2g} (exact binomial, two-sided)"
    if absent := [env for env in figure.of if env not in measured]:
        test = f"{test}, {len(figure.of) - len(absent)} of its {len(figure.of)} environments"
    return f"{head}  {100 * rate.mean:>8.2f}%  {counts:>9}  {figure.label:<{width}}  {test}"


_RULES = {
    "plain": "mean of the columns",
    "ood": "(5 vision + 7 semantic + 3 execution + in distribution) / 16",
    "suites": "unweighted mean of the suites",
    "printed": "by a rule that the source does not give",
}


def _average(figure: Figure, row: PublishedRow, measured: Measured, ours: Mapping[str, float]) -> float | None:
    """Return our average in per cent; None where a part of it was not played, or its rule is not known."""
    columns = sum(one.average is None for one in row.figures)
    if not measured.keys() >= set(row.envs) or len(ours) < columns:
        return None
    if figure.average == "plain":
        return statistics.fmean(ours.values())
    if figure.average == "suites":
        (episodes, tasks) = measured[figure.of[0]]
        rates = rates_by_suite(episodes, tasks)
        return 100 * mean_of_rates(rates) if len(rates) == len({task.suite for task in tasks}) else None
    weights = {"vision": 5, "semantic": 7, "execution": 3, "in distribution": 1}
    if figure.average == "ood":
        return sum(weight * ours[label] for label, weight in weights.items()) / 16
    return None


def _episodes(figure: Figure, measured: Measured) -> list[EpisodeRecord]:
    found: list[EpisodeRecord] = []
    for env in figure.of:
        episodes, tasks = measured.get(env, ((), ()))
        found += [one for one in episodes if not figure.suites or tasks[one.task_id].suite in figure.suites]
    return found


def comparison_record(row: PublishedRow, measured: Measured) -> dict[str, Any]:
    """Return the figures beside ours as JSON values."""
    figures = []
    for figure in row.figures:
        episodes = [] if figure.average else _episodes(figure, measured)
        entry: dict[str, Any] = {"label": figure.label, "published": figure.percent}
        if episodes:
            rate = overall_rate(episodes)
            entry |= {"successes": rate.successes, "episodes": rate.episodes, "percent": 100 * rate.mean}
            entry["p"] = binomial_exact(rate.successes, rate.episodes, figure.percent / 100)
        figures.append(entry)
    return {"name": row.name, "source": row.source, "figures": figures}
