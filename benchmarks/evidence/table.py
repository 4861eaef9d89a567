"""Trials of all environments and seeds as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

import numpy as np
from scipy import stats

from benchmarks.evidence.outcomes import IMITATION, Outcome, Outcomes
from zoo.evaluation.statistics import holm, sign_flip_exact

NAMES = {
    "sft": "SFT",
    "longer": "SFT, longer",
    "more": "SFT, more of the expert",
    "dagger": "DAgger",
    "ppo": "PPO",
    "grpo": "GRPO",
    "qc": "QC",
}
RESAMPLES = 10_000
"""Of a bootstrap interval."""
Interval = tuple[float, float]


def table(trials: Sequence[Outcomes]) -> str:
    """Markdown: a row for every policy of every environment, means over seeds, test split only.

    Points a minute are those gained over SFT, by the processor minutes beyond SFT's.
    """
    lines = [
        "| environment, seeds x start states | | solved, 95 % over seeds | CPU minutes | points a minute |",
        "|---|---|---|---|---|",
    ]
    for env, of_seeds in by_env(trials).items():
        columns = columns_of(of_seeds)
        for stage, column in columns.items():
            cells = [_label(env, column) if stage == "sft" else "", NAMES[stage], _rate(column)]
            cells += [f"{_mean_minutes(column):.1f}", _pace(columns["sft"], column)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def differences(trials: Sequence[Outcomes]) -> str:
    """Markdown: a row for every algorithm against every imitation of its environment, in points of success.

    Two populations are told apart. The difference of each seed (demonstrations, fine-tuning and training anew), its
    mean, the intervals and the p beside them speak of the method: what another seed would bring. The last p speaks of
    these policies alone: whether other start states would tell them apart. It is of the exact sign-flip test over start
    states, all seeds together, raised by Holm's method over all rows. Both are two-sided. The control that solves most
    of the test is the stronger one.
    """
    lines = [
        "| environment, seeds x start states | | against | points, seed by seed | mean, 95 % over seeds (t) "
        "| 95 % over seeds and start states (bootstrap) | p over seeds | p over start states, these policies (Holm) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows: list[list[str]] = []
    p_values = []
    for env, of_seeds in by_env(trials).items():
        columns = columns_of(of_seeds)
        controls = [stage for stage in columns if stage in IMITATION]
        stronger = max(controls, key=lambda stage: _mean_rate(columns[stage]))
        for stage in (stage for stage in columns if stage not in controls):
            for control in controls:
                before, after = columns[control], columns[stage]
                points = seed_differences(before, after)
                mean, half = over_seeds(points)
                low, high = bootstrap(before, after)
                first = not rows or rows[-1][0] != env
                rows.append(
                    [
                        env,
                        _label(env, before) if first else "",
                        NAMES[stage],
                        NAMES[control] + (", the stronger control" if control == stronger else ""),
                        ", ".join(f"{100 * one:+.1f}" for one in points),
                        f"{100 * mean:+.1f}" + ("" if math.isinf(half) else f" ± {100 * half:.1f}"),
                        "" if len(points) < 2 else f"{100 * low:+.1f} to {100 * high:+.1f}",
                        "" if len(points) < 2 else f"{p_over_seeds(points):.2g}",
                    ]
                )
                p_values.append(p_value(before, after))
    lines += [f"| {' | '.join((*row[1:], f'{p:.2g}'))} |" for row, p in zip(rows, holm(p_values), strict=True)]
    return "\n".join(lines)


def steps_needed(trials: Sequence[Outcomes]) -> str:
    """Markdown: the simulator steps after which other algorithms first reach PPO's best on validation.

    Shares of its steps and minutes, evaluations included, are medians over seeds; a seed that never reaches it counts
    as infinite.
    """
    lines = [
        "| environment, seeds | | PPO's best on validation | its steps | steps to as much "
        "| share of its steps, median | share of its minutes, median |",
        "|---|---|---|---|---|---|---|",
    ]
    for env, of_seeds in by_env(trials).items():
        columns = {stage: column for stage, column in columns_of(of_seeds).items() if column[0].curve}
        base = columns.pop("ppo", [])
        for stage, column in columns.items() if base else ():
            best = [max(one.curve.values()) for one in base]
            first = [_first(one, aim) for one, aim in zip(base, best, strict=True)]
            reached = [_first(one, aim) for one, aim in zip(column, best, strict=True)]
            cells = [f"{env}, {len(base)}", NAMES[stage], ", ".join(f"{100 * one:.0f} %" for one in best)]
            cells += [_steps([one for one, _ in first]), _steps([one for one, _ in reached])]
            for part in (0, 1):
                share = median(one[part] / whole[part] for one, whole in zip(reached, first, strict=True))
                cells.append("never" if math.isinf(share) else f"{share:.2f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _first(one: Outcome, aim: float) -> tuple[float, float]:
    """Return the steps and minutes of the first evaluation that reaches `aim`, of all it took; infinite for none."""
    steps = min((int(steps) for steps, rate in one.curve.items() if rate >= aim), default=math.inf)
    return steps, one.training_minutes * steps / max(map(int, one.curve))


def _steps(counts: Sequence[float]) -> str:
    return ", ".join("never" if math.isinf(one) else f"{one:,.0f}" for one in counts)


def by_env(trials: Sequence[Outcomes]) -> Mapping[str, Sequence[Outcomes]]:
    """Environment -> its trials in the order of seeds; raises `ValueError` where stages or recipes differ."""
    found: dict[str, list[Outcomes]] = {}
    for one in sorted(trials, key=lambda trial: (trial.env, trial.seed)):
        found.setdefault(one.env, []).append(one)
    for env, of_seeds in found.items():
        if any((one.stages.keys(), one.recipe) != (of_seeds[0].stages.keys(), of_seeds[0].recipe) for one in of_seeds):
            raise ValueError(f"{env}: every seed needs the same frozen recipe, controls and algorithms")
    return found


def columns_of(of_seeds: Sequence[Outcomes]) -> Mapping[str, Sequence[Outcome]]:
    """Stage -> its outcome of each seed."""
    return {stage: [one.stages[stage] for one in of_seeds] for stage in of_seeds[0].stages}


def seed_differences(control: Sequence[Outcome], trained: Sequence[Outcome]) -> list[float]:
    """Return the rate of `trained` minus that of `control`, seed by seed."""
    return [after.rate - before.rate for before, after in zip(control, trained, strict=True)]


def over_seeds(rates: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of the width of its 95 % interval (Student's t over seeds); infinite for one seed."""
    if len(rates) < 2:
        return fmean(rates), math.inf
    return fmean(rates), float(stats.t.ppf(0.975, len(rates) - 1) * stats.sem(rates))


def p_over_seeds(points: Sequence[float]) -> float:
    """Two-sided p of Student's t-test that the mean difference is 0; 0 or 1 where all seeds differ alike."""
    mean, half = over_seeds(points)
    return float(stats.ttest_1samp(points, 0.0).pvalue) if half else float(mean == 0)


def bootstrap(control: Sequence[Outcome], trained: Sequence[Outcome]) -> Interval:
    """95 % percentile interval of the mean difference; seeds and start states are drawn again, each by itself.

    The start states are the same in every seed, so the two are crossed (Owen 2007, "The pigeonhole bootstrap").
    """
    starts = _same_starts(control, trained)
    change_SE = np.array(
        [
            [float(after.solved[key]) - before.solved[key] for key in starts]
            for before, after in zip(control, trained, strict=True)
        ]
    )
    num_seeds, num_starts = change_SE.shape
    rng = np.random.default_rng(0)
    seed_RS = rng.multinomial(num_seeds, [1 / num_seeds] * num_seeds, RESAMPLES)
    start_RE = rng.multinomial(num_starts, [1 / num_starts] * num_starts, RESAMPLES)
    mean_R = np.einsum("rs,se,re->r", seed_RS, change_SE, start_RE, optimize=True) / change_SE.size
    low, high = np.percentile(mean_R, (2.5, 97.5))
    return float(low), float(high)


def p_value(control: Sequence[Outcome], trained: Sequence[Outcome]) -> float:
    """Of the exact sign-flip test over start states; a start state's difference is that of seeds that solve it."""
    starts = _same_starts(control, trained)
    solved = [[sum(one.solved[key] for one in side) for key in starts] for side in (control, trained)]
    return sign_flip_exact([after - before for before, after in zip(*solved, strict=True)])


def _same_starts(control: Sequence[Outcome], trained: Sequence[Outcome]) -> Sequence[str]:
    starts = control[0].solved.keys()
    if any(one.solved.keys() != starts for one in (*control, *trained)):
        raise ValueError("a paired comparison needs the same start states on both sides and in every seed")
    return list(starts)


def _label(env: str, column: Sequence[Outcome]) -> str:
    return f"{env}, {len(column)} x {len(column[0].solved)}"


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
