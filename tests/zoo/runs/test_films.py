"""Which films are a run's own: by name, so that one of another policy or environment is not taken for it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from zoo import enjoy
from zoo.cli.agent import RolloutPlan
from zoo.runs.films import film_file, own_films
from zoo.runs.folder import RunFolder

PLAN = RolloutPlan(
    env="Toy-Reach",
    policy="nano",
    suite=None,
    unnorm_key=None,
    env_options={},
    num_envs=1,
    cells=(),
    output_folder=Path("run"),
)


@pytest.mark.parametrize(
    ("departures", "folder", "name"),
    [
        ((), Path("run"), "run/videos/recorded.mp4"),
        (("step_9", "test", "stochastic"), Path("run"), "run/videos/recorded_step_9_test_stochastic.mp4"),
        (("test",), None, "video.mp4"),
    ],
)
def test_a_film_is_named_by_what_is_other(
    departures: tuple[str, ...], folder: Path | None, name: str
) -> None:
    plan = dataclasses.replace(PLAN, departures=departures, output_folder=folder)
    assert film_file(plan, "recorded", elsewhere="video") == Path(name)


def test_what_was_watched_is_named_so_too() -> None:
    plan = dataclasses.replace(PLAN, departures=("Toy-Push",))
    assert enjoy._film(enjoy.parser().parse(["-i", "run"]), plan) == Path("run/videos/enjoy_Toy-Push.mp4")


def test_own_films_are_those_without_departures_oldest_first(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert own_films(run) == []
    run.videos.mkdir()
    own = ["step_64.mp4", "recorded.mp4", "replay.mp4", "enjoy.mp4"]
    for at, name in enumerate(
        [*own, "recorded_step_9.mp4", "enjoy_Toy-Push.mp4", "step_9_test.mp4", "mine.mp4"]
    ):
        (run.videos / name).write_text("film")
        os.utime(run.videos / name, (at, at))
    assert [film.name for film in own_films(run)] == own
