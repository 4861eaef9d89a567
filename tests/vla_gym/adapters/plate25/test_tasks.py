from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from vla_gym import find_benchmark, list_envs
from vla_gym.adapters.plate25 import tasks as plate25_tasks
from vla_gym.adapters.plate25.tasks import IDS, NUM_TASKS, plate25_benchmark
from vla_gym.errors import BadValue, MissingDependency, UnknownName
from vla_gym.observation import check_instruction


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MANISKILL_ASSET_DIR", raising=False)
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path))
    monkeypatch.setenv("VLA_ZOO_CACHE", str(tmp_path))


def test_the_training_set_and_sixteen_runs_are_listed() -> None:
    assert len(IDS) == 17
    assert set(IDS) <= set(list_envs())


@pytest.mark.parametrize("env_id", IDS)
def test_every_id_is_described(env_id: str) -> None:
    benchmark = find_benchmark(env_id)
    assert len(benchmark.tasks) == NUM_TASKS[env_id]
    assert {task.horizon for task in benchmark.tasks} == {80}
    for task in benchmark.tasks:
        check_instruction(task.instruction)
    json.dumps([dict(benchmark.simulator_kwargs), dict(benchmark.protocol)])
    spec = benchmark.action_spec
    assert (spec.rotation, spec.gripper, spec.frame) == ("euler_xyz", "plus_one_opens", "delta_target")


def test_trials() -> None:
    assert [task.num_trials for task in plate25_benchmark("ManiSkill-Plate25").tasks] == [50_176] * 16
    runs = {name: plate25_benchmark(f"ManiSkill-Plate25-{name}") for name in ("EEPose", "Carrot", "Plate")}
    # The published 256 episodes, or just above: 16 * 16, 9 * 29, 256 * 1.
    assert {name: sum(task.num_trials for task in run.tasks) for name, run in runs.items()} == {
        "EEPose": 256,
        "Carrot": 261,
        "Plate": 256,
    }
    every = plate25_benchmark("ManiSkill-Plate25-EEPose", starts="all")
    assert sum(task.num_trials for task in every.tasks) == 11_540_480_000


def test_a_run_has_the_split_of_its_name() -> None:
    runs = {name: find_benchmark(f"ManiSkill-Plate25-{name}", split="train") for name in ("Carrot", "CarrotTrain")}
    assert {name: run.split for name, run in runs.items()} == {"Carrot": "test", "CarrotTrain": "train"}
    assert find_benchmark("ManiSkill-Plate25-Carrot", split="test") == runs["Carrot"]
    for name, split in (("CarrotTrain", "test"), ("Carrot", "all")):
        with pytest.raises(BadValue, match=rf"Plate25-{name} has .* of its name.*got '{split}'.*leave split out"):
            find_benchmark(f"ManiSkill-Plate25-{name}", split=split)


def test_splits_of_the_training_set() -> None:
    found = {
        split: sum(task.num_trials for task in find_benchmark("ManiSkill-Plate25", split=split).tasks)
        for split in ("train", "test", "all")
    }
    assert found == {"train": 802_816, "test": 141_120, "all": 1_646_400}
    assert find_benchmark("ManiSkill-Plate25/8", split="test").tasks[0].instruction == "put cup on plate"
    with pytest.raises(UnknownName, match="Did you mean 'ManiSkill-Plate25/8'"):
        find_benchmark("ManiSkill-Plate25/9", split="test")


def test_instructions_of_runs() -> None:
    instructions = {task.instruction for task in plate25_benchmark("ManiSkill-Plate25-Instruct").tasks}
    assert len(instructions) == 256
    assert "Move bread so it\N{RIGHT SINGLE QUOTATION MARK}s on plate." in instructions
    assert find_benchmark("ManiSkill-Plate25-CarrotTest").id == "ManiSkill-Plate25-Carrot"


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ({"protocol": "rl4vlaa"}, "rl4vla"),
        ({"action_units": "scalled"}, "scaled"),
        ({"render_quality": "fats"}, "fast"),
        ({"starts": "al"}, "all"),
        ({"split": "tset"}, "test"),
    ],
)
def test_a_wrong_option_names_the_nearest(option: dict[str, str], hint: str) -> None:
    with pytest.raises(UnknownName, match=f"Did you mean '{hint}'"):
        plate25_benchmark("ManiSkill-Plate25", **option)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="no starts ''"):
        plate25_benchmark("ManiSkill-Plate25", starts="")
    with pytest.raises(BadValue, match="stand_ins must be true or false, got 1"):
        plate25_benchmark("ManiSkill-Plate25", stand_ins=1)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="Did you mean 'ManiSkill-Plate25-EEPose'"):
        find_benchmark("ManiSkill-Plate25-EEpoes")


def test_stand_ins_are_announced_once_recorded_and_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plate25_tasks, "ANNOUNCED", set())
    with caplog.at_level(logging.WARNING, logger="vla_gym"):
        benchmark = plate25_benchmark("ManiSkill-Plate25-EEPose")
        plate25_benchmark("ManiSkill-Plate25-EEPose")
    assert len(caplog.records) == 1
    assert "robot widowx250s, table mesh" in caplog.text
    assert len(benchmark.protocol["stand_ins"]) == 35
    with pytest.raises(MissingDependency, match=r"files are missing \(robot.*plate25\.download"):
        plate25_benchmark("ManiSkill-Plate25-EEPose", stand_ins=False)
