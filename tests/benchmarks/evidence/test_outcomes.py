from __future__ import annotations

from pathlib import Path

from benchmarks.evidence.outcomes import Outcome, Outcomes


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    stages = {
        "sft": Outcome(solved={"0/1": True, "0/2": False}, cpu_minutes=1.5),
        "ppo": Outcome(solved={"0/1": True, "0/2": True}, cpu_minutes=2.5),
    }
    written = Outcomes(env="Toy-Reach", seed=3, stages=stages)
    written.save(tmp_path / "one.json")
    assert Outcomes.load(tmp_path / "one.json") == written
    assert written.stages["sft"].rate == 0.5
