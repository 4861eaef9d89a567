from __future__ import annotations

from pathlib import Path

from benchmarks.evidence.outcomes import Outcome, Outcomes


def test_a_record_is_read_as_it_was_written_and_names_each_start_state_once(tmp_path: Path) -> None:
    stages = {
        "sft": Outcome(solved={"0/a1": False, "0/b2": True}, cpu_minutes=1.5),
        "ppo": Outcome(solved={"0/b2": True, "0/a1": True}, cpu_minutes=3.0, curve={"10": 0.5}, training_minutes=1.5),
    }
    made = Outcomes(env="Toy-Reach", seed=3, stages=stages, recipe="ab12")
    made.save(tmp_path / "one.json")
    assert Outcomes.load(tmp_path / "one.json") == made
    assert (tmp_path / "one.json").read_text().count("0/b2") == 1
