"""The suite's published averages, from the success rates of its 16 runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_gym.adapters.plate25.runs import RUNS, Category
from vla_gym.errors import BadValue, one_line, shown
from vla_gym.reading import read_json_object

PREFIX = "ManiSkill-Plate25-"
_RULES = ("protocol", "picture", "render_quality", "action_units", "stand_ins", "success")
"""Constants of the protocol that the evaluations of one average have in common."""
_OF_POLICY = ("weights_sha256", "deterministic")
"""Entries about the policy that they have in common."""


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
    """(5 vision + 7 semantic + 3 execution + in_distribution) / 16: the "average of OOD" of papers."""
    unseen: float
    """Mean of the 15 runs that do differ from training."""


def averages(rates: Mapping[str, float]) -> Averages:
    """Return the averages of all 16 runs; `rates` maps run names ("VisionImage" or "ManiSkill-Plate25-VisionImage").

    Raises `BadValue` naming missing and unknown runs.
    """
    short = {name.removeprefix(PREFIX): rate for name, rate in rates.items()}
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


def read_results(files: Sequence[Path], *, at_end: bool) -> dict[str, float]:
    """Return run -> success rate from the results of `zoo.evaluate`, one file a run.

    Raises `BadValue` for another kind of file, for two of one run, and for rates that do not belong together
    because protocol, image, action units or policy differ.
    """
    rates: dict[str, float] = {}
    rules: dict[str, Any] = {}
    for file in files:
        record = read_json_object(file)
        try:
            name = record["protocol"]["env_id"].removeprefix(PREFIX)
            solved = [episode["success_at_end" if at_end else "success_once"] for episode in record["episodes"]]
            constants = record["protocol"]["constants"]
            rule = {key: constants[key] for key in _RULES} | {key: record.get(key) for key in _OF_POLICY}
            rate = sum(solved) / len(solved)
        except (LookupError, TypeError, AttributeError, ZeroDivisionError) as error:
            raise BadValue(f"{file} holds no results of zoo.evaluate on a {PREFIX}* run: {shown(error)}") from error
        if at_end and record["protocol"].get("options", {}).get("success_ends"):
            raise BadValue(
                f"{file} is of episodes that end at the first success, so they have no rate at the end; "
                'repeat zoo.evaluate with -params "env_kwargs:{success_ends: false}"'
            )
        # Which files are missing differs from run to run; whether any is missing must not.
        rule["stand_ins"] = bool(rule["stand_ins"])
        if name in rates or rules not in ({}, rule):
            raise BadValue(f"{file} is a second result of {name}, or was evaluated by other rules: {rule}, not {rules}")
        rates[name], rules = rate, rule
    return rates


def main(argv: Sequence[str] | None = None) -> int:
    """Print the published averages of 16 evaluations."""
    parser = argparse.ArgumentParser(prog="vla_gym.adapters.plate25.averages", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="results of zoo.evaluate, one for each run")
    parser.add_argument("--at-end", action="store_true", help="count success in the last step, as RL4VLA does")
    args = parser.parse_args(argv)
    try:
        found = averages(read_results(args.files, at_end=args.at_end))
    except BadValue as error:
        sys.stderr.write(f"error: {one_line(str(error))}\n")
        return 2
    for label, rate in (
        ("vision (5 runs)", found.vision),
        ("semantic (7)", found.semantic),
        ("execution (3)", found.execution),
        ("in distribution (1)", found.in_distribution),
        ("average of OOD, as published (16)", found.published),
        ("mean of the 15 that differ from training", found.unseen),
    ):
        sys.stdout.write(f"{label:42}{100 * rate:7.2f} %\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
