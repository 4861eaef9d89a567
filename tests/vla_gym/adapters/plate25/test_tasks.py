from __future__ import annotations

import json
import logging

import pytest

from vla_gym import find_benchmark
from vla_gym.adapters.plate25 import tasks as plate25_tasks
from vla_gym.adapters.plate25.tasks import IDS, NUM_TASKS, plate25_benchmark
from vla_gym.errors import MissingDependency
from vla_gym.observation import check_instruction

pytestmark = pytest.mark.usefixtures("bare")


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
