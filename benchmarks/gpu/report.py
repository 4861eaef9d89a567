"""Outcomes as JSON and as Markdown: a table for each kind of stage, with shares of what the card can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.apart import Outcome
from benchmarks.gpu.card import Peak

TITLES = {
    "peaks": "The card, measured",
    "train": "Iterations of PPO",
    "act": "Acting",
    "update": "One PPO step",
    "int8": "One PPO step over frozen weights in 8 bits",
    "nf4": "One PPO step over frozen weights in 4 bits",
    "steps": "Simulators",
    "ratio": "Ratios at the beginning of an update",
    "graph": "CUDA graphs",
    "compile": "torch.compile",
}
SHARES = {"FLOP/s": ("of peak FLOP/s", "flops"), "bytes/s": ("of peak bandwidth", "bandwidth")}
"""Figure -> the share that it becomes, and which of the card's bounds it is a share of."""


def with_shares(outcomes: Sequence[Outcome], peak: Peak | None) -> list[dict[str, Any]]:
    """Return records for JSON: outcomes, with shares of the card's bounds beside rates of arithmetic and traffic."""
    records = []
    for outcome in outcomes:
        record = outcome.to_json()
        if peak is not None and outcome.name != "peaks":
            for name, value in outcome.figures.items():
                rate = name.rpartition(", ")[2]
                if rate in SHARES:
                    share, bound = SHARES[rate]
                    record["figures"][name.replace(rate, share)] = float(value) / getattr(peak, bound)
        records.append(record)
    return records


def markdown(machine: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    """Return the page."""
    lines = ["# benchmarks.gpu", "", *(f"- {name}: {value}" for name, value in machine.items())]
    for kind, title in TITLES.items():
        rows = [one for one in records if one["name"].partition(":")[0] == kind]
        if rows:
            lines += ["", f"## {title}", "", *_table([one for one in rows if one["status"] == "measured"])]
            lines += [f"- {one['name']}: {one['status']}, {one['reason']}" for one in rows if one["reason"]]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A column for each stage, a row for each figure."""
    if not rows:
        return []
    names = list(dict.fromkeys(name for row in rows for name in row["figures"]))
    head = ["", *(row["name"].partition(":")[2] or row["name"] for row in rows)]
    body = [[name, *(_shown(name, row["figures"].get(name)) for row in rows)] for name in names]
    return [_line(head), _line(["---"] * len(head)), *map(_line, body), ""]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(name: str, value: float | int | str | None) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if "of peak" in name:
        return f"{value:.1%}"
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.3e}"
