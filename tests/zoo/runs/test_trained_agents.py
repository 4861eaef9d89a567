from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vla_gym.adapters.libero import tasks as libero_tasks
from vla_gym.errors import MissingDependency, UnknownName
from zoo import enjoy
from zoo.cli.main import guarded
from zoo.runs import lookup as agents
from zoo.runs.lookup import agents_folder, agents_for, find_agents, is_shipped, local_or_shipped


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with four agents, seen from an empty folder."""
    root = tmp_path / "package" / "agents"
    for stage, env in [("sft", "Toy-Reach"), ("ppo", "Toy-Reach"), ("sft", "Toy-Reach/1"), ("sft", "MetaWorld/reach")]:
        folder = root / stage / env.replace("/", "-")
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "config.yml").write_text(f"env: {env}\n")
    monkeypatch.setattr(agents, "agents_folder", lambda: root)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return root


def test_what_is_here_comes_first_and_other_paths_are_left_alone(shipped: Path) -> None:
    Path("agents/ppo/Toy-Reach").mkdir(parents=True)
    assert local_or_shipped("agents/ppo/Toy-Reach") == Path("agents/ppo/Toy-Reach")
    assert local_or_shipped("logs/ppo/Toy-Reach_1") == Path("logs/ppo/Toy-Reach_1")


def test_an_agent_that_does_not_exist_gets_the_nearest_name(shipped: Path) -> None:
    with pytest.raises(UnknownName, match="agents/ppo/Toy-Reach"):
        local_or_shipped("agents/ppo/Toy-Reac")


def test_agents_of_an_environment_come_with_the_further_trained_first(shipped: Path) -> None:
    assert agents_for("Toy-Reach") == ["agents/ppo/Toy-Reach", "agents/sft/Toy-Reach"]
    assert len(find_agents()) == 4


def test_a_task_of_a_suite_is_played_by_its_own_agents_then_by_the_suites(shipped: Path) -> None:
    suites = ["agents/ppo/Toy-Reach", "agents/sft/Toy-Reach"]
    assert agents_for("Toy-Reach/1") == ["agents/sft/Toy-Reach-1", *suites]
    assert agents_for("Toy-Reach/2") == suites


def test_an_agent_of_some_tasks_is_none_of_a_suite_with_more(shipped: Path) -> None:
    assert agents_for("MetaWorld-MT10") == []


def test_agents_of_a_benchmark_that_is_not_installed_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libero", None)
    monkeypatch.setattr(libero_tasks, "_task_names", libero_tasks._task_names.__wrapped__)
    assert any("LIBERO" in agent for agent in find_agents())
    assert agents_for("MetaWorld/window-close")[0] == "agents/grpo/MetaWorld-window-close"
    assert agents_for("Toy-Reach") == []
    with pytest.raises(MissingDependency, match="LIBERO is not installed"):
        agents_for("LIBERO-Object")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment without a checkout, into which the agents' distribution can be put."""
    site_packages = tmp_path / "site-packages"
    site_packages.mkdir()
    monkeypatch.setattr(agents, "_CHECKOUT", site_packages / "agents")
    monkeypatch.syspath_prepend(site_packages)
    monkeypatch.chdir(tmp_path)
    return site_packages


def test_agents_come_from_their_own_distribution(installed: Path) -> None:
    (installed / "agents").mkdir()  # another project's package of that name
    folder = installed / "vla_zoo_agents" / "ppo" / "Toy-Reach"
    folder.mkdir(parents=True)
    (installed / "vla_zoo_agents" / "__init__.py").touch()
    (folder / "config.json").write_text("{}")
    assert local_or_shipped("agents/ppo/Toy-Reach") == folder
    assert find_agents() == ["agents/ppo/Toy-Reach"]
    assert is_shipped(folder)


def test_without_them_one_line_says_how_to_install_them(
    installed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agents, "find_spec", lambda name: None)
    assert agents_folder() is None
    assert not is_shipped(installed)
    for flags in (["-i", "agents/ppo/Toy-Reach"], ["--env", "Toy-Reach"]):
        assert guarded(enjoy.run, flags) == 2
        said = capsys.readouterr().err
        assert 'pip install "vla-zoo[agents]"' in said
        assert said.count("\n") == 1
