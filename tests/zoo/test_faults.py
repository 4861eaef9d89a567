"""Kills between any two calls that write, full disks, and two processes in one folder: each case is a fork."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import vla_gym
from vla_gym.specs import StartState
from zoo.algorithms.ppo import PPO
from zoo.cli.main import main
from zoo.demonstrations.lerobot_reader import read_dataset
from zoo.files import recover_folders
from zoo.training.checkpoint import load_checkpoint, save_best, save_checkpoint

pytestmark = [pytest.mark.processes, pytest.mark.skipif(sys.platform != "linux", reason="forks and limits as on Linux")]

WRITING = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink")
"""Events of Python's audit that come before a call that may change the disk."""
KILLED = 137
TINY = ["num_workers:0", "policy_kwargs:{backbone_kwargs: {size: tiny}}"]
ACT = ["--env", "Toy-Reach", "--policy", "nano", "--device", "cpu", "--num-threads", "1"]
COLLECT = ["collect", *ACT, "--keep-failures", "--num-envs", "2", "-o", "demos", "-params", *TINY]
TRAIN = ["train", "--env", "Toy-Reach", "--num-envs", "2", "--seed", "0", "--device", "cpu", "--num-threads", "1"]
SHORT = ["--eval-freq", "40", "--eval-episodes", "2", "--no-eval-video"]
PARAMS = ["-params", "n_steps:4", "batch_size:8", *TINY]
SFT = ["sft", "--env", "Toy-Reach", "--dataset", "demos", "--device", "cpu", "--num-threads", "1"]
RUN = "logs/ppo/Toy-Reach_1"


def in_child(act: Callable[[], int], said: Path) -> int:
    """Exit code of a fork that calls `act`, its stderr in `said`; a traceback is code 1."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.dup2(os.open(said, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # not pytest's file, which a limit would hit
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            code = act()
        except BaseException:  # noqa: BLE001
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            sys.excepthook(*sys.exc_info())
        finally:
            try:
                sys.stderr.flush()
            finally:  # whatever a limit makes of the flush, a child must not go on as the parent
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
        (found,) = folder.glob("step_*")
        load_checkpoint(loading, found)  # every byte as it was written, or it is refused
        assert [*folder.iterdir()] == [found]

    assert killed_everywhere(lambda: save_checkpoint(model, folder), check, folder) >= 8


def test_a_kill_between_any_two_calls_leaves_a_best_policy(model: PPO, tmp_path: Path) -> None:
    best = tmp_path / "run" / "best"
    save_best(model.policy, best, success=0.25, num_timesteps=1)

    def check() -> None:
        recover_folders(best.parent)
        assert [path.name for path in best.parent.iterdir()] == ["best"]
        names = ["config.json", "manifest.json", "model.safetensors", "score.json"]
        assert sorted(path.name for path in best.iterdir()) == names

    def save() -> None:
        save_best(model.policy, best, success=0.5, num_timesteps=2)

    assert killed_everywhere(save, check, best.parent) >= 5


@pytest.mark.slow
def test_a_collection_goes_on_after_a_kill_between_any_two_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = tmp_path / "said"
    assert in_child(lambda: main([*COLLECT, "-n", "2"]), said) == 0
    whole = read_dataset(Path("demos"))
    killed = 0
    for number in range(0, 200, 23):
        shutil.rmtree("demos")

        def kill(number: int = number) -> int:
            at_event(number, die, below=Path("demos"))
            return main([*COLLECT, "-n", "2"])

        code = in_child(kill, said)
        assert code in (0, KILLED), said.read_text()
        killed += code == KILLED
        assert in_child(lambda: main([*COLLECT, "-n", "2"]), said) == 0, said.read_text()
        found = read_dataset(Path("demos"))
        assert [one.start for one in found] == [one.start for one in whole]
        assert all((one.action_TA == other.action_TA).all() for one, other in zip(found, whole, strict=True))
        if not code:
            break
    assert killed >= 2
    assert isinstance(whole[0].start, StartState)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and demonstrations."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert in_child(lambda: main([*TRAIN, *SHORT, "-n", "64", *PARAMS]), folder / "said") == 0
        assert in_child(lambda: main([*COLLECT, "-n", "2"]), folder / "said") == 0
    (folder / "said").unlink()
    return folder


def test_what_a_killed_machine_left_is_gone_after_the_next_start(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that is started anew, or the next node of a queue, has another name."""
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    run = Path(RUN)
    (run / "best").rename(run / ".best.replaced-another_machine-1")
    (run / "checkpoints" / ".step_9.partial-another_machine-1").mkdir()
    assert in_child(lambda: main(["train", "-i", RUN, "-n", "128", "--device", "cpu"]), tmp_path / "said") == 0
    assert (run / "best").is_dir()
    assert not list(run.rglob(".*"))


def test_a_kill_while_the_checkpoints_of_a_fine_tuning_are_removed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    remove = shutil.rmtree

    def killed() -> int:
        def die_within(folder: Path, **options: Any) -> None:
            if "checkpoints" in folder.name:
                next(path for path in folder.rglob("*") if path.is_file()).unlink()
                die()
            remove(folder, **options)

        monkeypatch.setattr(shutil, "rmtree", die_within)
        return main([*SFT, "-n", "2", "--save-freq", "1", "--eval-episodes", "0", "-params", *TINY])

    assert in_child(killed, said := tmp_path / "said") == KILLED, said.read_text()
    assert in_child(lambda: main(["sft", "-i", "logs/sft/Toy-Reach_1"]), said) == 2
    assert "has made all its 2 updates" in said.read_text()
    assert not list(Path("logs/sft").rglob(".*"))


WRITERS = {
    "train": [*TRAIN, *SHORT, "-n", "64", "-f", "new", *PARAMS],
    "train on": ["train", "-i", RUN, "-n", "128", "--device", "cpu"],
    "sft": [*SFT, "-n", "2", "--eval-episodes", "0", "-f", "new", "-params", *TINY],
    "collect": ["collect", *ACT, "--keep-failures", "-n", "2", "-o", "new", "-params", *TINY],
    "evaluate": ["evaluate", "-i", RUN, "--eval-episodes", "2", "-o", "new.json", "--device", "cpu"],
    "record_video": ["record_video", "-i", RUN, "--episodes", "1", "-o", "new.mp4", "--device", "cpu"],
    "plot": ["plot", RUN, "-o", "new.png"],
    "report": ["report", "-i", RUN, "-o", "new.html"],
}
"""Every command that writes, told to write something new, `train on` apart."""


def names() -> list[str]:
    """Everything here."""
    return sorted(str(path) for path in Path().rglob("*") if path.name != "said")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("train on", "collect") else pytest.mark.thorough) for name in WRITERS],
)
def test_a_full_disk_is_one_line_and_leaves_nothing(
    name: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file may grow past 1,000 bytes: `ulimit -f`."""
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    before = names()

    def limited() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        return main(WRITERS[name])

    code = in_child(limited, said := tmp_path / "said")
    assert code == 2, said.read_text()
    lines = said.read_text().splitlines()
    assert "Traceback" not in said.read_text()
    assert len([line for line in lines if line.startswith("error: ")]) == 1, lines
    assert [name for name in names() if name not in before and "tfevents" not in name] == []
