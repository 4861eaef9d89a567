from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vla_gym.adapters.plate25.averages import averages, main
from vla_gym.adapters.plate25.runs import RUNS
from vla_gym.errors import BadValue


def rates(**of: float) -> dict[str, float]:
    return {name: of[run.category] for name, run in RUNS.items()}


def test_by_hand() -> None:
    # (5 * 80 + 7 * 70 + 3 * 60 + 90) / 16 = 1160 / 16 = 72.5; without the control 1070 / 15 = 71.33...
    given = rates(vision=80.0, semantic=70.0, execution=60.0, in_distribution=90.0)
    assert list(averages(given).values()) == pytest.approx([80.0, 70.0, 60.0, 90.0, 72.5, 1070 / 15])
    named = {f"ManiSkill-Plate25-{name}": rate for name, rate in given.items()}
    assert averages(named) == averages(given)
    given.pop("Instruct")
    with pytest.raises(BadValue, match="missing: Instruct; unknown: Instruction"):
        averages({**given, "Instruction": 1})


def results(folder: Path, name: str, wins: list[tuple[bool, bool]], **other: Any) -> str:
    ends, weights = other.pop("success_ends", False), other.pop("weights_sha256", "1")
    constants = {"protocol": {}, "picture": "squeezed", "render_quality": "full", "action_units": {}, "stand_ins": []}
    constants |= other
    constants["success"] = "ends there" if ends else "goes on"
    episodes = [{"success_once": once, "success_at_end": at_end} for once, at_end in wins]
    env_id = f"ManiSkill-Plate25-{name}"
    protocol = {"env_id": env_id, "constants": constants, "options": {"success_ends": True} if ends else {}}
    asked = f"{env_id}Test" if name == "Carrot" else env_id  # its other name
    facts = {"weights_sha256": weights, "deterministic": True}
    record = {"env": asked, "episodes": episodes, "protocol": protocol, **facts}
    (folder / f"{name}.json").write_text(json.dumps(record))
    return str(folder / f"{name}.json")


def test_from_files_of_evaluations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Every run 1 of 2 once, none at the end; the control run both.
    files = [results(tmp_path, name, [(True, False), (False, False)]) for name in RUNS if name != "CarrotTrain"]
    files.append(results(tmp_path, "CarrotTrain", [(True, True), (True, True)]))
    assert main(files) == 0
    # (15 * 50 + 100) / 16 = 53.125
    assert capsys.readouterr().out.splitlines()[4:] == [
        "average of OOD, as published (16)           53.12 %",
        "mean of the 15 that differ from training    50.00 %",
    ]
    assert main(["--at-end", *files]) == 0
    assert "6.25 %" in capsys.readouterr().out


def test_what_does_not_belong_together_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plate = results(tmp_path, "Plate", [(True, True)])
    assert main([plate]) == 2
    assert "missing: Carrot, CarrotTrain" in capsys.readouterr().err
    assert main([plate, plate]) == 2
    assert "Plate" in capsys.readouterr().err
    for other in ({"stand_ins": ["table mesh"]}, {"weights_sha256": "2"}, {"picture": "kept"}, {"success_ends": True}):
        ended = results(tmp_path, "EEPose", [(True, True)], **other)
        assert main([plate, ended]) == 2
        assert "other rules" in capsys.readouterr().err
    assert main(["--at-end", ended]) == 2
    assert "success_ends: false" in capsys.readouterr().err
    (tmp_path / "other.json").write_text("[]")
    assert main([str(tmp_path / "other.json")]) == 2
    assert "other.json" in capsys.readouterr().err
