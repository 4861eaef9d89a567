from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from benchmarks.evidence.outcomes import Outcome, Outcomes
from benchmarks.evidence.table import bootstrap, differences, over_seeds, p_value, steps_needed, table

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


def test_the_table_says_what_each_policy_solves_and_costs() -> None:
    trials = [
        trial(2, {"sft": "0100", "longer": "1100", "ppo": "1110"}),
        trial(1, {"sft": "1000", "longer": "1100", "ppo": "1111"}),
    ]
    # The rates 1 and 3/4: 12.706 x 0.17678 / sqrt(2) = 158.8 %. 25 points in 8 minutes, 62.5 in 8.
    assert table(trials).splitlines()[2:] == [
        "| MetaWorld/window-open, 2 x 4 | SFT | 25.0 ± 0.0 % (25.0, 25.0) | 3.0 |  |",
        "|  | SFT, longer | 50.0 ± 0.0 % (50.0, 50.0) | 11.0 | 3.1 |",
        "|  | PPO | 87.5 ± 158.8 % (100.0, 75.0) | 11.0 | 7.8 |",
    ]


def test_a_method_is_judged_over_seeds_and_its_policies_over_start_states() -> None:
    trials = [
        trial(2, {"sft": "0100", "longer": "1100", "ppo": "1110"}),
        trial(1, {"sft": "1000", "longer": "1100", "ppo": "1111"}),
    ]
    against_sft, against_longer = differences(trials).splitlines()[2:]
    # +75 and +50 points: 62.5, 12.706 x 17.678 / sqrt(2) = 158.8. t = 62.5 / 12.5 = 5 of one degree of freedom:
    # p = 1 - 2 atan(5) / pi = 0.1257. Start states differ by 1, 1, 2 and 1: of 16 signs the two that are all alike,
    # 2 / 16, twice by Holm.
    assert against_sft.startswith("| MetaWorld/window-open, 2 x 4 | PPO | SFT | +75.0, +50.0 | +62.5 ± 158.8 | ")
    assert against_sft.endswith(" | 0.13 | 0.25 |")
    # +50 and +25: 37.5, t = 37.5 / 12.5 = 3, p = 0.2048. Start states 2 and 3 differ, by 2 and by 1: p is 0.5.
    assert against_longer.startswith("|  | PPO | SFT, longer, the stronger control | +50.0, +25.0 | +37.5 ± 158.8 | ")
    assert against_longer.endswith(" | 0.2 | 0.5 |")


def test_one_seed_says_nothing_of_a_method() -> None:
    # Five start states lost, none gained: 2 / 2^5, of two rows.
    *_, last = differences([trial(1, {"sft": "00000", "longer": "11111", "ppo": "00000"})]).splitlines()
    assert last == "|  | PPO | SFT, longer, the stronger control | -100.0 | -100.0 |  |  | 0.12 |"


def test_the_bootstrap_draws_seeds_and_start_states() -> None:
    nothing, all_of_two = outcome("00"), outcome("11")
    # Seeds differ by 0 and 1 in every start state: a quarter of the draws have one of them twice.
    assert bootstrap([nothing, nothing], [nothing, all_of_two]) == (0.0, 1.0)
    # All seeds alike: what is left is the start states, 1 of 2.
    assert bootstrap([nothing, nothing], [outcome("10"), outcome("10")]) == (0.0, 1.0)
    assert bootstrap([nothing], [all_of_two]) == (1.0, 1.0)


def test_seeds_of_other_recipes_are_not_averaged() -> None:
    one, other = trial(1, {"sft": "1", "ppo": "1"}), trial(2, {"sft": "1", "ppo": "1"})
    with pytest.raises(ValueError, match="the same frozen recipe"):
        table([one, replace(other, recipe="changed")])


def test_steps_needed_are_those_of_the_first_evaluation_that_is_as_good() -> None:
    def trained(minutes: float, curve: Mapping[str, float]) -> Outcome:
        return replace(outcome("1"), curve=curve, training_minutes=minutes)

    ppo = trained(8.0, {"10000": 0.5, "20000": 0.8, "40000": 0.8})
    seeds = [
        {"sft": outcome("0"), "ppo": ppo, "qc": trained(2.0, {"2000": 0.4, "5000": 0.9, "10000": 0.7})},
        {"sft": outcome("0"), "ppo": ppo, "qc": trained(2.0, {"2000": 0.8, "10000": 0.7})},
        {"sft": outcome("0"), "ppo": ppo, "qc": trained(2.0, {"2000": 0.4, "10000": 0.7})},
    ]
    trials = [Outcomes(env="E", seed=number, stages=stages) for number, stages in enumerate(seeds)]
    # Of 20,000 steps 5,000 are a quarter; of the 4 minutes that they took, 1 minute is a quarter.
    assert steps_needed(trials).splitlines()[2:] == [
        "| E, 3 | QC | 80 %, 80 %, 80 % | 20,000, 20,000, 20,000 | 5,000, 2,000, never | 0.25 | 0.25 |"
    ]
