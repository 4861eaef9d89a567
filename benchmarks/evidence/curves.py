"""Learning curves of all trials as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evidence.outcomes import Outcome, Outcomes
from benchmarks.evidence.table import NAMES, by_env, columns_of

COLOURS = {"ppo": "#2f81f7", "grpo": "#db6d28", "qc": "#2da44e"}


def write_curves(trials: Sequence[Outcomes], path: Path) -> None:
    """Write success on the validation split over simulator steps, and over CPU minutes, as a picture.

    A row of panels for each environment: a thin line for each seed, a thick one for the mean of each evaluation.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    envs = by_env([one for one in trials if any(stage.curve for stage in one.stages.values())])
    figure = Figure(figsize=(8.0, 2.7 * len(envs)), layout="constrained")
    panels = figure.subplots(len(envs), 2, sharey=True, squeeze=False)
    for row, (env, of_seeds) in zip(panels, envs.items(), strict=True):
        columns = {stage: column for stage, column in columns_of(of_seeds).items() if column[0].curve}
        for stage, column in columns.items():
            _draw(row, column, COLOURS[stage], NAMES[stage])
        row[0].set(title=f"{env}, {len(of_seeds)} seeds", ylabel="success on validation", ylim=(0, 1.02), xscale="log")
        row[0].set_xlabel("simulator steps")
        row[0].xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        row[0].xaxis.set_major_formatter("{x:,.0f}")
        row[0].xaxis.set_minor_formatter(NullFormatter())
        row[1].set_xlabel("CPU minutes of the training, evaluations included")
        row[1].legend(loc="lower right")
    figure.savefig(path, dpi=110)


def _draw(row: Sequence[Any], column: Sequence[Outcome], colour: str, label: str) -> None:
    points = [curve(one) for one in column]
    length = min(len(steps) for steps, _, _ in points)
    mean = [np.mean([values[:length] for values in of_seeds], axis=0) for of_seeds in zip(*points, strict=True)]
    for panel, of in zip(row, (0, 1), strict=True):
        for one in points:
            panel.plot(one[of], one[2], color=colour, linewidth=0.7, alpha=0.4)
        panel.plot(mean[of], mean[2], color=colour, linewidth=2.0, label=label)


def curve(one: Outcome) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return simulator steps, minutes and success of each evaluation, in their order."""
    order = sorted(one.curve, key=int)
    steps = np.array([int(number) for number in order], dtype=float)
    return steps, one.training_minutes * steps / steps[-1], np.array([one.curve[number] for number in order])
