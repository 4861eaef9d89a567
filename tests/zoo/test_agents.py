from __future__ import annotations

from pathlib import Path

import pytest

from vla_gym.errors import UnknownName
from zoo import agents
from zoo.agents import find_agents, local_or_shipped


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with three agents, seen from an empty folder."""
    root = tmp_path / "package" / "agents"
    for name in ("sft/Toy-Reach", "ppo/Toy-Reach", "sft/MetaWorld-reach"):
        (root / name).mkdir(parents=True)
        (root / name / "config.json").write_text("{}")
    monkeypatch.setattr(agents, "packaged_folder", lambda name: tmp_path / "package" / name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return root


def test_a_shipped_agent_is_found_from_anywhere(shipped: Path) -> None:
    assert local_or_shipped("agents/ppo/Toy-Reach") == shipped / "ppo" / "Toy-Reach"


def test_what_is_here_comes_first_and_other_paths_are_left_alone(shipped: Path) -> None:
    Path("agents/ppo/Toy-Reach").mkdir(parents=True)
    assert local_or_shipped("agents/ppo/Toy-Reach") == Path("agents/ppo/Toy-Reach")
    assert local_or_shipped("logs/ppo/Toy-Reach_1") == Path("logs/ppo/Toy-Reach_1")


def test_an_agent_that_does_not_exist_gets_the_nearest_name(shipped: Path) -> None:
    with pytest.raises(UnknownName, match="agents/ppo/Toy-Reach"):
        local_or_shipped("agents/ppo/Toy-Reac")


def test_agents_of_an_environment_come_with_the_further_trained_first(shipped: Path) -> None:
    assert find_agents("Toy-Reach") == ["agents/ppo/Toy-Reach", "agents/sft/Toy-Reach"]
    assert len(find_agents()) == 3
