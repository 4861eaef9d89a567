"""The suite's published averages, from the success rates of its 16 runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vla_gym.adapters.plate25.runs import RUNS
from vla_gym.errors import BadValue, one_line, shown
from vla_gym.reading import read_json_object

PREFIX = "ManiSkill-Plate25-"
_RULES = ("protocol", "picture", "render_quality", "action_units", "stand_ins", "success")
"""Constants of the protocol that the evaluations of one average have in common."""
_OF_POLICY = ("weights_sha256", "deterministic")
"""Entries about the policy that they have in common."""


def averages(rates: Mapping[str, float]) -> dict[str, float]:
    """Return label -> average of all 16 runs, in the unit of the rates.

    The published "average of OOD" is (5 vision + 7 semantic + 3 execution + in distribution) / 16. `rates` maps run
    names ("VisionImage" or "ManiSkill-Plate25-VisionImage"). Raises `BadValue` naming missing and unknown runs.
    """
    short = {name.removeprefix(PREFIX): rate for name, rate in rates.items()}
    missing, unknown = sorted(set(RUNS) - set(short)), sorted(set(short) - set(RUNS))
    if missing or unknown:
        raise BadValue(
            "the average needs the rates of all 16 runs"
            + (f"; missing: {', '.join(missing)}" if missing else "")
            + (f"; unknown: {', '.join(unknown)}" if unknown else "")
        )
    of_category: dict[str, list[float]] = {}
    for name, run in RUNS.items():
        of_category.setdefault(run.category, []).append(short[name])
    means = {category: sum(found) / len(found) for category, found in of_category.items()}
    weighted = 5 * means["vision"] + 7 * means["semantic"] + 3 * means["execution"]
    return {
        "vision (5 runs)": means["vision"],
        "semantic (7)": means["semantic"],
        "execution (3)": means["execution"],
        "in distribution (1)": means["in_distribution"],
        "average of OOD, as published (16)": (weighted + means["in_distribution"]) / 16,
        "mean of the 15 that differ from training": weighted / 15,
    }


def read_results(files: Sequence[Path], *, at_end: bool) -> dict[str, float]:
    """Return run -> success rate from the results of `vla-zoo evaluate`, one file a run.

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
            raise BadValue(f"{file} holds no results of vla-zoo evaluate on a {PREFIX}* run: {shown(error)}") from error
        if at_end and record["protocol"].get("options", {}).get("success_ends"):
            raise BadValue(
                f"{file} is of episodes that end at the first success, so they have no rate at the end; "
                'repeat vla-zoo evaluate with -params "env_kwargs:{success_ends: false}"'
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
    parser.add_argument("files", nargs="+", type=Path, help="results of vla-zoo evaluate, one for each run")
    parser.add_argument("--at-end", action="store_true", help="count success in the last step, as RL4VLA does")
    args = parser.parse_args(argv)
    try:
        found = averages(read_results(args.files, at_end=args.at_end))
    except BadValue as error:
        sys.stderr.write(f"error: {one_line(str(error))}\n")
        return 2
    for label, rate in found.items():
        sys.stdout.write(f"{label:42}{100 * rate:7.2f} %\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
