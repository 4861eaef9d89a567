"""Outcomes of a trial: the start states of the test split that each policy solved, and its cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Self

IMITATION = ("sft", "longer", "more", "dagger")
"""Stages without reinforcement learning: the start of all, and the controls."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One policy on the test split."""

    solved: Mapping[str, bool]
    """Start state, e.g. "0/17", task and number -> whether it was solved."""
    cpu_minutes: float
    """Of a processor, of all that led to the policy: demonstrations, trainings, evaluations on the way."""
    curve: Mapping[str, float] = field(default_factory=dict)
    """Simulator steps of a training -> success on the validation split after them; empty for imitation."""
    training_minutes: float = 0.0
    """Those of `cpu_minutes` that the training of the curve took; 0 for imitation."""

    @property
    def rate(self) -> float:
        """Solved ones of all start states."""
        return fmean(self.solved.values())


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """All policies of one seed."""

    env: str
    seed: int
    stages: Mapping[str, Outcome]
    """"sft", then the controls, then the algorithms."""
    recipe: str = ""
    """Hash of the frozen recipe, see `benchmarks.evidence.frozen`; empty for records from before there were any."""

    def save(self, path: Path) -> None:
        """Write JSON, the names of the start states once, for all policies play the same."""
        starts = list(next(iter(self.stages.values())).solved)
        record = {"starts": " ".join(starts), **asdict(self)}
        for one in record["stages"].values():
            one["solved"] = "".join(str(int(one["solved"][start])) for start in starts)
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` has written."""
        record = json.loads(path.read_text(encoding="utf-8"))
        starts = record.pop("starts").split()
        stages = {
            name: Outcome(
                **{**one, "solved": {start: digit == "1" for start, digit in zip(starts, one["solved"], strict=True)}}
            )
            for name, one in record["stages"].items()
        }
        return cls(**{**record, "stages": stages})
