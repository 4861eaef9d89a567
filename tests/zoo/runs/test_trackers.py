from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS
from stable_baselines3.common.logger import KVWriter

from tests.zoo.stand_ins import toy_config
from vla_gym.errors import BadValue
from zoo.config.tracking import SERVICES, Tracking
from zoo.runs.folder import RunFolder
from zoo.runs.trackers import start_trackers

CONFIG = toy_config(n_timesteps=100, num_envs=2)


class StandInTracker:
    """Speaks Accelerate's tracker interface and remembers what it was told."""

    name = "wandb"
    made: list[StandInTracker] = []  # noqa: RUF012 - a record of the test

    def __init__(self, project: str, **options: Any) -> None:
        self.project, self.options, self.logged = project, options, []
        self.config: dict[str, Any] = {}
        self.finished = False
        self.broken = False
        StandInTracker.made.append(self)

    def start(self) -> None:
        if self.project == "refused":
            raise RuntimeError("No API key\nconfigured.")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.config = values

    def log(self, values: dict[str, float], step: int) -> None:
        if self.broken:
            raise ConnectionError("no route")
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished = True


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[StandInTracker]:
    StandInTracker.made.clear()
    for name in SERVICES:
        monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, name, StandInTracker)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return StandInTracker


def start(path: Path, **names: Any) -> tuple[KVWriter, StandInTracker]:
    (writer,) = start_trackers(Tracking(trackers=("wandb",), **names), RunFolder(path), CONFIG)
    return writer, StandInTracker.made[-1]


def test_numbers_arrive_at_their_step_and_gaps_do_not(tmp_path: Path) -> None:
    writer, tracker = start(tmp_path)
    writer.write({"rollout/success_once": 0.5, "train/loss": math.nan, "note": "text"}, {}, 64)
    writer.close()
    assert tracker.logged == [(64, {"rollout/success_once": 0.5})]
    assert tracker.finished
    assert tracker.project == "vla-zoo"
    assert tracker.config["env"] == "Toy-Reach"


def test_a_run_that_goes_on_is_the_same_run_to_the_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    _, first = start(tmp_path)
    _, second = start(tmp_path)
    assert first.options["id"] == second.options["id"]
    assert len(first.options["id"]) == 21
    assert second.options["resume"] == "allow"
    assert second.project == "mine"


def test_a_tracker_that_fails_is_given_up_once_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer, tracker = start(tmp_path)
    tracker.broken = True
    writer.write({"a": 1.0}, {}, 1)
    writer.write({"a": 1.0}, {}, 2)
    writer.close()
    assert capsys.readouterr().out == "warning: wandb is given up, the run goes on: no route\n"
    assert not tracker.finished


def test_a_tracker_that_does_not_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "refused")
    with pytest.raises(BadValue, match=r"No API key configured\. Log in \(wandb login\).*WANDB_MODE=offline"):
        start(tmp_path)


def test_several_trackers_follow_one_run_under_the_names_asked_for(tmp_path: Path) -> None:
    asked = Tracking(
        trackers=("wandb", "swanlab", "trackio"),
        project="reach",
        run_name="third try",
        entity="lab",
        group="seeds",
        tags=("toy",),
    )
    writers = start_trackers(asked, RunFolder(tmp_path), CONFIG)
    for writer in writers:
        writer.write({"a": 1.0}, {}, 8)
        writer.close()
    wandb, swanlab, trackio = StandInTracker.made
    assert all(tracker.project == "reach" and tracker.logged == [(8, {"a": 1.0})] for tracker in StandInTracker.made)
    assert {"name": "third try", "entity": "lab", "group": "seeds", "tags": ("toy",)}.items() <= wandb.options.items()
    assert {"experiment_name": "third try", "workspace": "lab", "tags": ("toy",)}.items() <= swanlab.options.items()
    assert {"name": "third try", "group": "seeds", "resume": "allow"}.items() == trackio.options.items()
    assert wandb.options["id"] == swanlab.options["id"]


def test_one_that_refuses_finishes_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWANLAB_PROJ_NAME", "refused")
    with pytest.raises(BadValue, match="--track swanlab: it does not start"):
        start_trackers(Tracking(trackers=("wandb", "swanlab")), RunFolder(tmp_path), CONFIG)
    assert StandInTracker.made[0].finished
