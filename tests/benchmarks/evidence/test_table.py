from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from benchmarks.evidence.outcomes import Outcome, Outcomes
from benchmarks.evidence.table import over_seeds, p_value, table

MINUTES = {"sft": 3.0, "longer": 11.0, "dagger": 13.0, "ppo": 11.0}


def outcome(solved: str, cpu_minutes: float = 1.0) -> Outcome:
    """`solved`: a character for each start state, 1 where it was."""
    return Outcome(solved={f"0/{number}": one == "1" for number, one in enumerate(solved)}, cpu_minutes=cpu_minutes)


def trial(seed: int, solved: Mapping[str, str], env: str = "MetaWorld/window-open") -> Outcomes:
    stages = {stage: outcome(one, MINUTES[stage]) for stage, one in solved.items()}
    return Outcomes(env=env, seed=seed, stages=stages)


def test_the_interval_is_over_seeds() -> None:
    # Deviation 0.1 over three seeds: 4.303 x 0.1 / sqrt(3).
    mean, half = over_seeds([0.5, 0.6, 0.7])
    assert (mean, half) == pytest.approx((0.6, 0.24843), abs=1e-4)
    assert over_seeds([0.5]) == (0.5, math.inf)


def test_seeds_of_a_start_state_count_as_one() -> None:
    nothing = outcome("000")
    # Differences 2, 1 and 0: of the four signs of the first two, two sums are as far from 0.
    assert p_value([nothing, nothing], [outcome("110"), outcome("100")]) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="the same start states"):
        p_value([nothing], [outcome("10")])


def test_the_table_compares_with_the_stronger_control() -> None:
    trials = [
        trial(2, {"sft": "0100", "longer": "1100", "dagger": "1000", "ppo": "1110"}),
        trial(1, {"sft": "1000", "longer": "1100", "dagger": "1000", "ppo": "1111"}),
    ]
    # Start states 2 and 3 differ, by 2 and by 1: p is 0.5. The rates 1 and 3/4: 12.706 x 0.17678 / sqrt(2) = 158.8 %.
    # 25 points in 8 minutes, 0 in 10, 62.5 in 8.
    assert table(trials).splitlines()[2:] == [
        "| MetaWorld/window-open, 2 x 4 | SFT | 25.0 ± 0.0 % (25.0, 25.0) | 3.0 |  |  |",
        "|  | SFT, longer | 50.0 ± 0.0 % (50.0, 50.0) | 11.0 | 3.1 | the stronger control |",
        "|  | DAgger | 25.0 ± 0.0 % (25.0, 25.0) | 13.0 | 0.0 |  |",
        "|  | PPO | 87.5 ± 158.8 % (100.0, 75.0) | 11.0 | 7.8 | 0.5 |",
    ]


def test_the_table_says_where_reinforcement_learning_is_worse() -> None:
    # Five start states lost, none gained: 2 / 2^5.
    last = table([trial(1, {"sft": "00000", "longer": "11111", "ppo": "00000"})]).splitlines()[-1]
    assert last == "|  | PPO | 0.0 % | 11.0 | 0.0 | 0.062, worse |"
