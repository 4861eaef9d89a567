from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS
from stable_baselines3.common.logger import KVWriter, Logger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from tests.zoo.stand_ins import toy_config
from vla_gym.errors import BadValue
from zoo.config.tracking import SERVICES, Tracking
from zoo.runs.folder import RunFolder
from zoo.runs.loggers import JsonLines, ScreenTable, TensorBoard, start_trackers
from zoo.runs.monitor import read_metrics

CONFIG = toy_config(n_timesteps=100, num_envs=2)


def test_the_screen_shows_success_first_and_blanks_for_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    logger = Logger(None, [ScreenTable("ppo")])
    logger.record("train/actor/approx_kl", 0.0123)
    logger.record("rollout/success_once", 0.25)
    logger.dump(512)
    logger.record("train/actor/approx_kl", float("nan"))
    logger.dump(1024)
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["steps", "success", "return"]
    assert first.split() == ["512", "25.0%", "1.2e-02"]
    assert second.split() == ["1024"]


def test_what_is_no_update_makes_no_row_but_messages_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    logger = Logger(None, [ScreenTable("ppo")])
    logger.record("eval/success_once", 1.0)
    logger.dump(1)
    logger.info("groups: abc 1/4")
    assert capsys.readouterr().out == "groups: abc 1/4\n"


def test_metrics_are_json_and_a_resume_drops_what_came_after(tmp_path: Path) -> None:
    first = JsonLines(tmp_path)
    for step in (10, 20, 30):
        first.write({"a": np.float32(0.5), "b": float("nan"), "c": "text", "d": np.int64(3)}, {}, step)
    first.close()
    path = tmp_path / "metrics.jsonl"
    assert json.loads(path.read_text().splitlines()[0]) == {"step": 10, "a": 0.5, "b": None, "d": 3}
    with path.open("a") as half:
        half.write('{"step": 31, "a"')
    second = JsonLines(tmp_path, keep_until=20)
    second.write({"a": 1.0}, {}, 25)
    second.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [10, 20, 25]


def test_tensorboard_hides_events_past_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Files of one second are read in the order of their names: .10 before .9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    first = TensorBoard(tmp_path)
    for step in (10, 20, 30):
        first.write({"a": float(step)}, {"a": ()}, step)
    first.close()
    second = TensorBoard(tmp_path, keep_until=20)
    second.write({"a": 0.0}, {"a": ()}, 25)
    second.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("a")] == [(10, 10.0), (20, 20.0), (25, 0.0)]


def test_metrics_may_end_in_half_a_line_and_no_other_damage(tmp_path: Path) -> None:
    path, run = tmp_path / "metrics.jsonl", RunFolder(tmp_path)
    path.write_text('{"step": 1}\n{"step": 2, "a"')
    assert read_metrics(run) == [{"step": 1}]
    for damage, says in (
        (b'{"step": 1}\ngarbage\n{"step": 2}\n', "line 2' is not valid JSON"),
        (b'{"a": 1}\n', "line 1 does not say its step"),
        (b"[1]\n", "line 1 does not say its step"),
    ):
        path.write_bytes(damage)
        with pytest.raises(BadValue, match=rf"metrics\.jsonl' is damaged: .*{says}"):
            read_metrics(run)


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
    monkeypatch.setenv("SWANLAB_PROJ_NAME", "refused")
    with pytest.raises(BadValue, match="--track swanlab"):
        start_trackers(Tracking(trackers=("wandb", "swanlab")), RunFolder(tmp_path), CONFIG)
    assert StandInTracker.made[0].finished
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
