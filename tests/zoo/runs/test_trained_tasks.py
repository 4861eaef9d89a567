from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.zoo.stand_ins import toy_config
from vla_gym.registry import find_benchmark
from zoo.config.run_config import to_plain
from zoo.runs import shipped_agents
from zoo.runs.trained_tasks import trained_before

TASKS = find_benchmark("Toy-Reach").tasks


def make_run(folder: Path, policy: str, *task_ids: int) -> str:
    """A run from `policy` on some of Toy-Reach's tasks; return its policy's folder."""
    tasks = [{"suite": TASKS[i].suite, "name": TASKS[i].name} for i in task_ids]
    best = folder / "best"
    best.mkdir(parents=True)
    (best / "config.json").write_text("{}")
    (folder / "protocol.json").write_text(json.dumps({"tasks": tasks}))
    (folder / "args.yml").write_text("{}")
    config = toy_config(policy=policy, n_timesteps=8, num_envs=4)
    (folder / "config.yml").write_text(yaml.safe_dump(to_plain(config)))
    return str(best)


def test_a_policy_knows_the_tasks_of_its_run_and_of_the_runs_before(tmp_path: Path) -> None:
    first = make_run(tmp_path / "first", "nano", 0)
    second = make_run(tmp_path / "second", first, 2)
    assert trained_before(second, TASKS) == {
        f"tasks that {second} was trained on": [0, 2],
        "tasks that are new to it": [1],
    }


def test_a_run_that_names_itself_as_its_beginning_ends(tmp_path: Path) -> None:
    best = make_run(tmp_path / "run", str(tmp_path / "run" / "best"), 1)
    assert list(trained_before(best, TASKS).values()) == [[1], [0, 2]]


@pytest.mark.parametrize("policy", ["nano", "org/of-the-hub", "checkpoint", "all/best", "none/best"])
def test_what_is_known_of_all_tasks_or_of_none_makes_no_groups(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("checkpoint").mkdir()
    make_run(tmp_path / "all", "nano", 0, 1, 2)
    make_run(tmp_path / "none", "nano")
    assert trained_before(policy, TASKS) == {}


def test_a_trained_agent_goes_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped_agents, "agents_folder", lambda: tmp_path / "package")
    make_run(tmp_path / "package" / "ppo" / "Toy-Reach", "gone/best", 1)
    monkeypatch.chdir(tmp_path)
    assert "tasks that agents/ppo/Toy-Reach was trained on" in trained_before("agents/ppo/Toy-Reach/best", TASKS)


@pytest.mark.parametrize("record", ["{", '{"tasks": 5}', '{"tasks": [{"suite": "x"}]}', "{}"])
def test_a_damaged_record_is_a_warning(record: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    best = make_run(tmp_path / "run", "nano", 0)
    (tmp_path / "run" / "protocol.json").write_text(record)
    assert trained_before(best, TASKS) == {}
    assert str(tmp_path / "run/protocol.json") in caplog.messages[0]
