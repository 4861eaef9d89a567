from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.zoo.stand_ins import toy_config
from zoo.runs.folder import RunFolder, create_run_folder, describe_run

CONFIG = toy_config(
    env="LIBERO-Spatial/3",
    n_timesteps=100,
    num_envs=4,
    seed=1,
    env_options={"chunk": 8, "group_size": 2},
    algo_kwargs={"learning_rate": {"schedule": "linear", "start": 1e-3}},
)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = create_run_folder(tmp_path, "ppo", CONFIG.env)
    describe_run(run, config=CONFIG, args={"env": CONFIG.env}, command=["python", "a b"], protocol={"x": 1})
    return run


def test_folders_are_numbered_like_rl_zoo3s(tmp_path: Path) -> None:
    names = [create_run_folder(tmp_path, "ppo", "LIBERO-Spatial/3").path.name for _ in range(2)]
    assert names == ["LIBERO-Spatial-3_1", "LIBERO-Spatial-3_2"]
    assert create_run_folder(tmp_path, "ppo", "LIBERO-Spatial").path.name == "LIBERO-Spatial_1"
    (tmp_path / "ppo" / "LIBERO-Spatial_10").mkdir()
    assert create_run_folder(tmp_path, "ppo", "LIBERO-Spatial").path.name == "LIBERO-Spatial_11"


def test_a_run_that_goes_on_keeps_its_first_flags_and_all_commands(run: RunFolder) -> None:
    longer = replace(CONFIG, n_timesteps=200)
    describe_run(run, config=longer, args={"env": None}, command=["python", "-i", "x"], protocol={})
    lines = (run.path / "command.txt").read_text().splitlines()
    assert [line.split("  #")[0] for line in lines] == ["python 'a b'", "python -i x"]
    assert yaml.safe_load((run.path / "args.yml").read_text()) == {"env": CONFIG.env}
    assert run.config() == longer


def test_own_videos_are_those_without_departures_oldest_first(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.own_videos() == []
    run.videos.mkdir()
    own = ["step_64.mp4", "recorded.mp4", "replay.mp4", "enjoy.mp4"]
    for at, name in enumerate([*own, "recorded_step_9.mp4", "enjoy_Toy-Push.mp4", "step_9_test.mp4", "mine.mp4"]):
        (run.videos / name).write_text("video")
        os.utime(run.videos / name, (at, at))
    assert [video.name for video in run.own_videos()] == own
