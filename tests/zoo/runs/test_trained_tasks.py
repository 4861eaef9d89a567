from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.zoo.stand_ins import toy_config
from vla_gym.registry import find_benchmark
from zoo.config.run_config import to_plain
from zoo.runs import shipped_agents
from zoo.runs.trained_tasks import trained_tasks

TASKS = find_benchmark("Toy-Reach").tasks


def make_run(folder: Path, policy: str, *task_ids: int) -> Path:
    """A run from `policy` on some of Toy-Reach's tasks; return its policy's folder."""
    tasks = [{"suite": TASKS[i].suite, "name": TASKS[i].name} for i in task_ids]
    best = folder / "best"
    best.mkdir(parents=True)
    (best / "config.json").write_text("{}")
    (folder / "protocol.json").write_text(json.dumps({"tasks": tasks}))
    (folder / "args.yml").write_text("{}")
    config = toy_config(policy=policy, n_timesteps=8, num_envs=4)
    (folder / "config.yml").write_text(yaml.safe_dump(to_plain(config)))
    return best


def test_a_policy_knows_the_tasks_of_its_run_and_of_the_runs_before(tmp_path: Path) -> None:
    first = make_run(tmp_path / "first", "nano", 0)
    second = make_run(tmp_path / "second", str(first), 2)
    trained = trained_tasks(str(second))
    assert trained is not None
    assert trained.among(TASKS) == [0, 2]
    assert trained.groups(TASKS) == {
        f"tasks that {second} was trained on": [0, 2],
        "tasks that are new to it": [1],
    }
    assert trained.lines(TASKS) == [
        f"knows        {second} was trained on 2 of these tasks:",
        f"     -  {TASKS[0].instruction}",
        f"     -  {TASKS[2].instruction}",
    ]


def test_a_run_that_names_itself_as_its_beginning_ends(tmp_path: Path) -> None:
    best = make_run(tmp_path / "run", str(tmp_path / "run" / "best"), 1)
    trained = trained_tasks(str(best))
    assert trained is not None
    assert trained.among(TASKS) == [1]


def test_all_tasks_and_none_need_no_words(tmp_path: Path) -> None:
    for number, task_ids in enumerate([(0, 1, 2), ()]):
        trained = trained_tasks(str(make_run(tmp_path / str(number), "nano", *task_ids)))
        assert trained is not None
        assert trained.lines(TASKS) == []
    assert trained_tasks(str(tmp_path / "0" / "best")).groups(TASKS) == {}  # type: ignore[union-attr]


@pytest.mark.parametrize("policy", ["nano", "org/of-the-hub", "checkpoint"])
def test_what_no_run_here_made_has_no_record(policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("checkpoint").mkdir()
    assert trained_tasks(policy) is None


@pytest.mark.parametrize("splits", [("train",), ("test",), ("test", "train")])
def test_a_trained_agent_says_by_its_name_what_it_solved(
    splits: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped_agents, "agents_folder", lambda: tmp_path / "package")
    make_run(tmp_path / "package" / "ppo" / "Toy-Reach", "gone/best", 1)
    solved = {"name": TASKS[1].name, "successes": 41, "episodes": 50}
    results = {split: {"tasks": [{**solved, "successes": 0}]} for split in splits} | {splits[-1]: {"tasks": [solved]}}
    (tmp_path / "package" / "ppo" / "Toy-Reach" / "results.json").write_text(json.dumps(results))
    monkeypatch.chdir(tmp_path)
    trained = trained_tasks("agents/ppo/Toy-Reach/best")
    assert trained is not None
    assert trained.lines(TASKS) == [
        "knows        agents/ppo/Toy-Reach was trained on 1 of these tasks (episodes it solved of them):",
        f"      41 of 50   {TASKS[1].instruction}",
    ]


@pytest.mark.parametrize("record", ["{", '{"tasks": 5}', '{"tasks": [{"suite": "x"}]}', "{}"])
def test_a_damaged_record_is_a_warning(record: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    best = make_run(tmp_path / "run", "nano", 0)
    (tmp_path / "run" / "protocol.json").write_text(record)
    trained = trained_tasks(str(best))
    assert trained is not None
    assert trained.tasks == frozenset()
    (warning,) = caplog.messages
    assert warning.startswith(f"not known on what '{tmp_path / 'run'}' was trained: '{tmp_path / 'run/protocol.json'}'")
