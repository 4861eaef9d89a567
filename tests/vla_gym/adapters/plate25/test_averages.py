from __future__ import annotations

import pytest

from vla_gym.adapters.plate25.averages import averages
from vla_gym.adapters.plate25.suite import RUNS
from vla_gym.errors import BadValue


def rates(**of: float) -> dict[str, float]:
    return {name: of[run.category] for name, run in RUNS.items()}


def test_by_hand() -> None:
    # (5 * 80 + 7 * 70 + 3 * 60 + 90) / 16 = 1160 / 16 = 72.5; without the control 1070 / 15 = 71.33...
    found = averages(rates(vision=80.0, semantic=70.0, execution=60.0, in_distribution=90.0))
    assert (found.vision, found.semantic, found.execution, found.in_distribution) == (80.0, 70.0, 60.0, 90.0)
    assert found.published == 72.5
    assert found.unseen == pytest.approx(1070 / 15)


def test_categories_are_means_of_their_runs() -> None:
    found = averages(
        {**rates(vision=0, semantic=0, execution=0, in_distribution=0), "EEPose": 0.6, "Plate": 0.7}
    )
    assert found.execution == pytest.approx(0.2)
    assert found.semantic == pytest.approx(0.1)


def test_public_ids_are_understood_and_gaps_named() -> None:
    full = rates(vision=1, semantic=1, execution=1, in_distribution=1)
    assert averages({f"ManiSkill-Plate25-{name}": rate for name, rate in full.items()}).published == 1
    full.pop("Instruct")
    with pytest.raises(BadValue, match="missing: Instruct; unknown: Instruction"):
        averages({**full, "Instruction": 1})
