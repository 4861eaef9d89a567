from __future__ import annotations

import pytest

from vla_gym.errors import BadValue, MissingDependency, UnknownName
from zoo.config import tracking
from zoo.config.tracking import Tracking


def test_names_and_packages_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'wandb'"):
        Tracking(trackers=("wandbb",)).check()
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="pip install swanlab"):
        Tracking(trackers=("swanlab",)).check()


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (Tracking(project="mine"), "--project-name"),
        (Tracking(run_name="mine"), "--run-name"),
        (Tracking(trackers=("trackio",), entity="lab"), "--wandb-entity"),
        (Tracking(trackers=("trackio",), tags=("toy",)), "--wandb-tags"),
        (Tracking(group="seeds"), "--wandb-group"),
    ],
)
def test_names_that_no_tracker_takes_are_refused(asked: Tracking, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: object())
    with pytest.raises(BadValue, match=named):
        asked.check()


def test_the_project_is_the_flags_then_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    assert Tracking().project_of("wandb") == "vla-zoo"
    monkeypatch.setenv("WANDB_PROJECT", "lab")
    assert Tracking().project_of("wandb") == "lab"
    assert Tracking(project="mine").project_of("wandb") == "mine"
