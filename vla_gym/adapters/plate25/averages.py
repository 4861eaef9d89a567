"""The suite's published averages, from the success rates of its 16 runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vla_gym.adapters.plate25.runs import Category
from vla_gym.adapters.plate25.suite import RUNS
from vla_gym.errors import BadValue


@dataclass(frozen=True)
class Averages:
    """Success rates in the unit they were given in."""

    vision: float
    """Mean of 5 runs."""
    semantic: float
    """Mean of 7."""
    execution: float
    """Mean of 3."""
    in_distribution: float
    """The control run."""
    published: float
    """(5 vision + 7 semantic + 3 execution + in_distribution) / 16: what papers print as "average of OOD"."""
    unseen: float
    """Mean of the 15 runs that do differ from training."""


def averages(rates: Mapping[str, float]) -> Averages:
    """Averages of all 16 runs; `rates` maps run names ("VisionImage" or "ManiSkill-Plate25-VisionImage").

    Raises `BadValue` naming what is missing or unknown.
    """
    short = {name.removeprefix("ManiSkill-Plate25-"): rate for name, rate in rates.items()}
    missing, unknown = sorted(set(RUNS) - set(short)), sorted(set(short) - set(RUNS))
    if missing or unknown:
        raise BadValue(
            "the average needs the rates of all 16 runs"
            + (f"; missing: {', '.join(missing)}" if missing else "")
            + (f"; unknown: {', '.join(unknown)}" if unknown else "")
        )
    means = {category: _mean(short, category) for category in ("vision", "semantic", "execution")}
    weighted = 5 * means["vision"] + 7 * means["semantic"] + 3 * means["execution"]
    control = _mean(short, "in_distribution")
    return Averages(
        vision=means["vision"],
        semantic=means["semantic"],
        execution=means["execution"],
        in_distribution=control,
        published=(weighted + control) / 16,
        unseen=weighted / 15,
    )


def _mean(rates: Mapping[str, float], category: Category | str) -> float:
    chosen = [rates[name] for name, run in RUNS.items() if run.category == category]
    return sum(chosen) / len(chosen)
