"""zoo.enjoy: whom it watches, what it says, and that it works with and without a display."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.zoo.stand_ins import toy_config
from zoo import enjoy
from zoo.runs.folder import RunFolder, create_run_folder, describe_run
from zoo.runs.lookup import newest_run

TOY = ["--env", "Toy-Reach", "--device", "cpu"]


def begun(logs: Path, algo: str, *, at: float, policy: bool = True) -> RunFolder:
    run = create_run_folder(logs, algo, "Toy-Reach")
    config = toy_config()
    describe_run(run, config=config, args={}, command=["x"], protocol={})
    os.utime(run.path / "config.yml", (at, at))
    if policy:
        run.best.mkdir()
        (run.best / "config.json").write_text("{}")
    return run


class FakeWindow:
    """Remembers what it was shown."""

    def __init__(self) -> None:
        self.pictures: list[np.ndarray] = []
        self.closed = False

    def show(self, picture_HW3: np.ndarray) -> None:
        self.pictures.append(picture_HW3)

    def close(self) -> None:
        self.closed = True


def test_the_newest_run_that_holds_a_policy_is_watched(tmp_path: Path) -> None:
    assert newest_run(tmp_path, ["ppo", "grpo"], "Toy-Reach") is None
    begun(tmp_path, "ppo", at=100.0)
    second = begun(tmp_path, "ppo", at=200.0)
    of_grpo = begun(tmp_path, "grpo", at=300.0)
    begun(tmp_path, "grpo", at=400.0, policy=False)
    assert newest_run(tmp_path, ["ppo", "grpo"], "Toy-Reach") == of_grpo
    assert newest_run(tmp_path, ["ppo"], "Toy-Reach") == second
    assert newest_run(tmp_path, ["ppo"], "Toy") is None


def test_without_a_display_the_episodes_become_a_video(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("zoo.enjoy.open_window", lambda title, *, fps: None)
    assert enjoy.run([*TOY, "--policy", "nano", "--episodes", "3"]) == 0
    read_as, title, *told, summary, filmed = capsys.readouterr().out.splitlines()
    assert read_as.startswith("read as: family nano; ")
    assert title.endswith("nano on Toy-Reach")
    assert [line.split(":")[0] for line in told] == [
        "1/3 reach the red block",
        "2/3 reach the green block",
        "3/3 reach the blue block",
    ]
    assert all(line.endswith("steps") and "solved" in line for line in told)
    assert " of 3 episodes solved, 95 % interval [" in summary
    assert filmed.startswith("no window can be shown here")
    assert (tmp_path / "enjoy-nano-Toy-Reach.mp4").stat().st_size > 1000


def test_a_window_shows_every_slot_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    window = FakeWindow()
    monkeypatch.setattr("zoo.enjoy.open_window", lambda title, *, fps: window)
    assert enjoy.run([*TOY, "--policy", "nano", "--episodes", "2", "--num-envs", "2"]) == 0
    assert window.closed
    one_slot, *_, both_slots = window.pictures
    assert both_slots.shape == (one_slot.shape[0], 2 * one_slot.shape[1], 3)
    assert "video" not in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
