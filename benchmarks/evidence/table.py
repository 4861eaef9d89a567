"""Trials of all environments and seeds as one table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from benchmarks.evidence.outcomes import IMITATION, Outcome, Outcomes
from zoo.evaluation.statistics import holm, sign_flip_exact

NAMES = {"sft": "SFT", "longer": "SFT, longer", "more": "SFT, more", "dagger": "DAgger", "ppo": "PPO", "grpo": "GRPO"}
_T_975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""Student's t of a number of seeds."""


def table(trials: Sequence[Outcomes]) -> str:
    """Markdown: a row for every policy of every environment, means over seeds, test split only.

    Points a minute are those gained over SFT, by the processor minutes beyond SFT's. p is of the exact sign-flip
    test over start states, all seeds together, against the control that solves most, raised by Holm's method over
    all rows of reinforcement learning; it is two-sided, so the row says where reinforcement learning is worse.
    """
    rows, p_values = [], []
    for env, of_seeds in by_env(trials).items():
        columns = {stage: [one.stages[stage] for one in of_seeds] for stage in of_seeds[0].stages}
        # What was fine-tuned least may be what was fine-tuned best.
        controls = [stage for stage in columns if stage in IMITATION]
        stronger = max(controls, key=lambda stage: _mean_rate(columns[stage]))
        num_starts = len(columns["sft"][0].solved)
        for stage, column in columns.items():
            shown = f"{env}, {len(of_seeds)} x {num_starts}" if stage == "sft" else ""
            cells = [shown, NAMES[stage], _rate(column), f"{_mean_minutes(column):.1f}", _pace(columns["sft"], column)]
            if stage in IMITATION:
                cells.append("the stronger control" if stage == stronger else "")
            else:
                p_values.append(p_value(columns[stronger], column))
                worse = _mean_rate(column) < _mean_rate(columns[stronger])
                cells.append("{p:.2g}, worse" if worse else "{p:.2g}")
            rows.append(cells)
    lines = [
        "| environment, seeds x start states | | solved | CPU minutes | points a minute | p (Holm) |",
        "|---|---|---|---|---|---|",
    ]
    raised = iter(holm(p_values))
    for *cells, last in rows:
        lines.append(f"| {' | '.join((*cells, last.format(p=next(raised)) if '{p' in last else last))} |")
    return "\n".join(lines)


def by_env(trials: Sequence[Outcomes]) -> Mapping[str, Sequence[Outcomes]]:
    """Environment -> its trials in the order of seeds; raises `ValueError` where they have other stages."""
    found: dict[str, list[Outcomes]] = {}
    for one in sorted(trials, key=lambda trial: (trial.env, trial.seed)):
        found.setdefault(one.env, []).append(one)
    for env, of_seeds in found.items():
        if any(one.stages.keys() != of_seeds[0].stages.keys() for one in of_seeds):
            raise ValueError(f"{env}: every seed needs the same controls and algorithms")
    return found


def over_seeds(rates: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of the width of its 95 % interval (Student's t over seeds); infinite for one seed."""
    if len(rates) < 2:
        return fmean(rates), math.inf
    return fmean(rates), _T_975[len(rates)] * stdev(rates) / math.sqrt(len(rates))


def p_value(control: Sequence[Outcome], trained: Sequence[Outcome]) -> float:
    """Of the exact sign-flip test over start states; a start state's difference is that of seeds that solve it."""
    starts = control[0].solved.keys()
    if any(one.solved.keys() != starts for one in (*control, *trained)):
        raise ValueError("a paired comparison needs the same start states on both sides and in every seed")
    solved = [[sum(one.solved[key] for one in side) for key in starts] for side in (control, trained)]
    return sign_flip_exact([after - before for before, after in zip(*solved, strict=True)])


def _mean_rate(column: Sequence[Outcome]) -> float:
    return fmean(one.rate for one in column)


def _mean_minutes(column: Sequence[Outcome]) -> float:
    return fmean(one.cpu_minutes for one in column)


def _rate(column: Sequence[Outcome]) -> str:
    mean, half = over_seeds([one.rate for one in column])
    if math.isinf(half):
        return f"{100 * mean:.1f} %"
    return f"{100 * mean:.1f} ± {100 * half:.1f} % ({', '.join(f'{100 * one.rate:.1f}' for one in column)})"


def _pace(start: Sequence[Outcome], column: Sequence[Outcome]) -> str:
    minutes = _mean_minutes(column) - _mean_minutes(start)
    points = 100 * (_mean_rate(column) - _mean_rate(start))
    return f"{points / minutes:.1f}" if minutes > 0 else ""
