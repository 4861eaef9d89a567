"""Runs of a benchmark of one's own are opened again by the commands that were printed."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from tests.zoo.stand_ins import toy_config
from vla_gym import registry as benchmarks
from vla_gym.errors import BadValue
from zoo.cli.main import main
from zoo.config import gym_packages
from zoo.config.gym_packages import import_gym_packages, import_named_packages, import_packages_of, packages_of
from zoo.config.run_config import to_plain

MODULE = """
import vla_gym
vla_gym.register_benchmark("vla_gym.adapters.toy:toy_benchmark", num_tasks={"My-Reach": 3})
"""
TRAIN = (
    "vla-zoo train --gym-packages my_own_tasks --env My-Reach -n 32 --num-envs 2 --seed 0 --device cpu "
    "--num-threads 1 -f 'my logs' -tb 'my events' -params chunk:4 eval_episodes:2 n_steps:4 batch_size:8 save_freq:32 "
    "'policy_kwargs:{backbone_kwargs: {size: tiny}}' num_workers:0"
)


def called(capsys: pytest.CaptureFixture[str], line: str) -> str:
    """What a command prints in a process that knows nothing yet of the benchmark; it must succeed."""
    benchmarks._ADDED.clear()
    sys.modules.pop("my_own_tasks", None)
    words = shlex.split(line)
    assert words[0] == "vla-zoo"
    assert main(words[1:]) == 0
    return capsys.readouterr().out


def advised(said: str, beginning: str) -> str:
    """The one printed command that begins so, as it would be pasted."""
    (line,) = (line.strip() for line in said.splitlines() if line.strip().startswith(beginning))
    return line.rpartition("   (")[0] or line


def test_an_environment_is_named_as_it_is_listed_once_its_module_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(benchmarks, "_ADDED", [])
    monkeypatch.setattr(gym_packages, "_asked", {})
    Path("their_tasks.py").write_text(MODULE)
    args = argparse.Namespace(gym_packages=["their_tasks"], env="my-reach/2")
    import_named_packages(args)
    assert args.env == "My-Reach/2"


@pytest.mark.processes
def test_every_command_that_is_printed_works_when_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(benchmarks, "_ADDED", [])
    monkeypatch.setattr(gym_packages, "_asked", {})
    Path("my_own_tasks.py").write_text(MODULE)
    said = called(capsys, TRAIN)
    short = "--eval-episodes 2 --device cpu --num-threads 1"
    assert "all episodes" in called(capsys, f"{advised(said, 'vla-zoo evaluate')} {short}")
    board = shlex.split(advised(said, "tensorboard"))
    assert list(Path(board[-1]).glob("events.out.tfevents*"))
    assert "going on at" in called(capsys, advised(said, "vla-zoo train"))

    # A run that begins at a checkpoint of it knows its packages, too.
    checkpoint = next(Path("my logs/ppo/My-Reach_1/checkpoints").iterdir())
    called(capsys, f"vla-zoo train -i {shlex.quote(str(checkpoint))} -n 96")
    assert packages_of(Path("my logs/ppo/My-Reach_2/args.yml")) == ["my_own_tasks"]


def test_a_module_that_is_gone_is_named_with_the_run_s_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "args.yml").write_text("gym_packages: [surely_gone_tasks]\n")
    gone = toy_config(env="Gone")
    (tmp_path / "config.yml").write_text(yaml.safe_dump(to_plain(gone)))
    assert main(["evaluate", "-i", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"gym_packages in {tmp_path}/args.yml: no module 'surely_gone_tasks' in {tmp_path} or" in line


@pytest.mark.parametrize("text", ["{}", "gym_packages: null"])
def test_a_run_without_packages_imports_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "args.yml").write_text(text)
    import_packages_of(tmp_path / "args.yml")


@pytest.mark.parametrize(
    ("text", "says"), [("gym_packages: mine", "must be a list of modules, got 'mine'"), ("{", "is not valid YAML")]
)
def test_a_damaged_file_is_named(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "args.yml").write_text(text)
    with pytest.raises(BadValue, match=says):
        packages_of(tmp_path / "args.yml")
    with pytest.raises(BadValue, match="cannot read"):
        packages_of(tmp_path / "none.yml")


def test_the_working_directory_is_searched_for_named_modules_alone_and_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = [path for path in sys.path if path not in ("", str(tmp_path))]
    monkeypatch.setattr(sys, "path", [*elsewhere])
    monkeypatch.chdir(tmp_path)
    import_gym_packages([])
    assert sys.path == elsewhere
    Path("tasks_of_mine.py").write_text("")
    import_gym_packages(["tasks_of_mine"])
    assert sys.path == [*elsewhere, str(tmp_path)]


@pytest.mark.parametrize("name", ["../x", "x.", "a b", "1"])
def test_what_is_no_module_name(name: str) -> None:
    with pytest.raises(BadValue, match="is no name of a module"):
        import_gym_packages([name])


def test_a_module_that_fails_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    Path("raises_at_once.py").write_text("x = 1\nraise RuntimeError('no licence')\n")
    Path("needs_more.py").write_text("import surely_not_installed_anywhere\n")
    for name, says in (
        ("raises_at_once", r"RuntimeError: no licence \(.*raises_at_once\.py:2\)"),
        ("needs_more", r"No module named 'surely_not_installed_anywhere' \(.*needs_more\.py:1\)"),
    ):
        with pytest.raises(BadValue, match=f"'{name}' raised .*{says}"):
            import_gym_packages([name])
