from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.evidence.curves import curve, write_curves
from benchmarks.evidence.outcomes import Outcome, Outcomes

PPO = Outcome(solved={"0/0": True}, cpu_minutes=9.0, curve={"9000": 0.5, "10000": 1.0}, training_minutes=5.0)


def test_evaluations_are_in_the_order_of_their_steps() -> None:
    steps, minutes, success = curve(PPO)
    assert (steps.tolist(), minutes.tolist(), success.tolist()) == ([9000, 10000], [4.5, 5.0], [0.5, 1.0])


def test_seeds_of_as_many_evaluations_or_fewer_make_one_picture(tmp_path: Path) -> None:
    shorter = replace(PPO, curve={"9000": 0.5})
    trials = [
        Outcomes(env="Toy-Reach", seed=seed, stages={"sft": Outcome(solved={}, cpu_minutes=1.0), "ppo": one})
        for seed, one in enumerate((PPO, shorter))
    ]
    write_curves(trials, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
