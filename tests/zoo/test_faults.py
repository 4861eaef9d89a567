"""Kills between any two calls that write a checkpoint or a policy; each is met by a fork of this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import vla_gym
from zoo.algorithms.ppo import PPO
from zoo.files import recover_folders
from zoo.training.checkpoint import find_latest_checkpoint, load_checkpoint, save_best, save_checkpoint

pytestmark = [pytest.mark.processes, pytest.mark.skipif(sys.platform != "linux", reason="forks and limits as on Linux")]

WRITING = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink")
"""Events of Python's audit that come before a call that may change the disk."""
KILLED = 137


def in_child(act: Callable[[], int], said: Path) -> int:
    """Exit code of a fork that calls `act`, its stderr in `said`; a traceback is code 1."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.dup2(os.open(said, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 2)
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            code = act()
        except BaseException:  # noqa: BLE001
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def at_event(number: int, act: Callable[[], None], *, below: Path) -> None:
    """Call `act` before the call of that number, from 0, that may change something below a folder."""
    left = number

    def watch(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        if event in WRITING and isinstance(args[0], str | Path) and str(args[0]).startswith(str(below)):
            left -= 1
            if left == -1:
                act()

    sys.addaudithook(watch)


def die() -> None:
    """End as by SIGKILL: nothing is cleaned up."""
    os._exit(KILLED)


def killed_everywhere(act: Callable[[], object], check: Callable[[], None], folder: Path) -> int:
    """Kill `act` before each of its calls that write, `check` what is there afterwards; return how many there are."""

    def begin(number: int) -> int:
        at_event(number, die, below=folder)
        act()
        return 0

    for number in range(1000):
        code = in_child(lambda number=number: begin(number), folder.parent / "said")  # type: ignore[misc]
        assert code in (0, KILLED), (folder.parent / "said").read_text()
        check()
        if not code:
            return number
    raise AssertionError("it never ended")


@pytest.fixture(scope="module")
def model() -> Iterator[PPO]:
    """A model after one update."""
    torch.set_num_threads(1)
    trained = build()
    trained.learn(1)
    yield trained
    trained.get_env().close()  # type: ignore[union-attr]


def build() -> PPO:
    """A model before its first."""
    envs = vla_gym.make_vec("Toy-Reach", num_envs=2, chunk=4, num_workers=0)
    tiny = {"backbone": "nano", "backbone_kwargs": {"size": "tiny"}}
    return PPO("VLAPolicy", envs, n_steps=4, batch_size=8, policy_kwargs=tiny, device="cpu", seed=0)


def test_a_kill_between_any_two_calls_leaves_a_whole_checkpoint(model: PPO, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    save_checkpoint(model, folder)
    loading = build()

    def check() -> None:
        recover_folders(folder)
        found = find_latest_checkpoint(folder.parent)
        assert found is not None
        load_checkpoint(loading, found)  # every byte as it was written, or it is refused
        assert [path.name for path in folder.iterdir()] == [found.name]

    assert killed_everywhere(lambda: save_checkpoint(model, folder), check, folder) >= 8


def test_a_kill_between_any_two_calls_leaves_a_best_policy(model: PPO, tmp_path: Path) -> None:
    best = tmp_path / "run" / "best"
    save_best(model.policy, best, success=0.25, num_timesteps=1)

    def check() -> None:
        recover_folders(best.parent)
        assert [path.name for path in best.parent.iterdir()] == ["best"]
        names = ["certificate.json", "config.json", "model.safetensors", "score.json"]
        assert sorted(path.name for path in best.iterdir()) == names

    def save() -> None:
        save_best(model.policy, best, success=0.5, num_timesteps=2)

    assert killed_everywhere(save, check, best.parent) >= 5
