"""Folders with one damaged file: what reads them ends in its result or in one line.

A drawn number (`tests/zoo/damage.py`) decides what is damaged, where and how; `make fuzz` draws fifty times as many.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vla_gym
from tests.zoo.damage import damage
from tests.zoo.test_fuzz import cases, check
from vla_gym.errors import BadValue, VLAZooError
from vla_policies import VLAPolicy
from vla_policies.checkpoint_io.manifest import MANIFEST_FILE, extend_manifest
from zoo.algorithms.ppo import PPO
from zoo.cli.main import main
from zoo.demonstrations.lerobot_reader import read_dataset
from zoo.runs.folder import STATE_FILE
from zoo.training.checkpoint import load_checkpoint

pytestmark = pytest.mark.processes

TINY = ["num_workers:0", "policy_kwargs:{backbone_kwargs: {size: tiny}}"]
TRAIN = ["train", "--env", "Toy-Reach", "--num-envs", "2", "-n", "64", "--seed", "0", "--device", "cpu", "-f", "logs"]
FLAGS = ["--save-freq", "40", "--eval-freq", "40", "--eval-episodes", "2", "--no-eval-video", "--num-threads", "1"]
COLLECT = ["collect", "--env", "Toy-Reach", "--policy", "nano", "--keep-failures", "-n", "3", "-o", "demos"]
RUN = "logs/ppo/Toy-Reach_1"
COMPARE, PLOT = ["compare", "--before", RUN, "--after", RUN], ["plot", RUN, "-o", "curves.png"]
COMMANDS_OF_RUNS = (
    *(["train", "-i", RUN, "-n", "128", "--dry-run"], ["train", "-i", RUN, "-n", "128"], ["evaluate", "-i", RUN]),
    *(["train", "--env", "Toy-Reach", "--policy", f"{RUN}/best", "--dry-run"], ["record_video", "-i", RUN]),
    *(["push_to_hub", "me/run", "-i", RUN], ["plan", "-i", RUN, "-n", "128"], ["evaluate", "-i", f"{RUN}/best"]),
    *(["serve", "-i", RUN], ["enjoy", "-i", RUN], ["sft", "-i", RUN], ["collect", "-i", RUN, "-n", "1", "-o", "new"]),
    ["evaluate", "--env", "Toy-Reach", "-f", "logs"],
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of Toy-Reach, its results, and demonstrations."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*TRAIN, *FLAGS, "-params", "n_steps:4", "batch_size:8", *TINY]) == 0
        assert main([*COLLECT, "-params", *TINY]) == 0
        shutil.copy(f"{RUN}/evaluation.json", f"{RUN}/results.json")
    return folder


@pytest.fixture(autouse=True)
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory is `home`; commands that would start simulators or talk to the Hub end there."""
    monkeypatch.chdir(home)
    for place in (
        *("zoo.agents.agent.open_agent", "zoo.hub.upload._send", "zoo.serving.local_policy.open_policy"),
        *("zoo.training.rl_trainer.set_up", "zoo.training.sft.finetune"),
        # Imported there by name, perhaps before this test.
        *("zoo.enjoy.open_agent", "zoo.agents.measuring.open_agent"),
    ):
        monkeypatch.setattr(place, _start)


def _start(*args: object, **options: object) -> None:
    raise BadValue("started")


@cases(30)
@given(draw=st.randoms(use_true_random=True))
def test_a_run_folder(draw: random.Random) -> None:
    one_run_folder(draw)


def one_run_folder(draw: random.Random) -> None:
    """A command of a damaged run."""
    with damage(Path(RUN), draw):
        check(draw.choice(COMMANDS_OF_RUNS), 0, 2)


@cases(8)
@given(draw=st.randoms(use_true_random=True))
def test_records(draw: random.Random) -> None:
    one_record(draw)


def one_record(draw: random.Random) -> None:
    """A page, a picture or a comparison of a damaged run's records."""
    command = draw.choice([["report", "-i", RUN], PLOT, PLOT, *[COMPARE] * 5])
    with damage(Path(RUN), draw):
        for written in ("curves.png", f"{RUN}/report.html"):
            if not os.path.lexists(written):
                Path(written).touch()
        check(command, 0, 2)


@pytest.fixture(scope="module")
def model() -> Iterator[PPO]:
    """What the run trained."""
    envs = vla_gym.make_vec("Toy-Reach", num_envs=2, chunk=4, num_workers=0)
    tiny: dict[str, Any] = {"backbone": "nano", "backbone_kwargs": {"size": "tiny"}}
    yield PPO("VLAPolicy", envs, n_steps=4, batch_size=8, policy_kwargs=tiny, device="cpu")
    envs.close()


@cases(25)
@given(draw=st.randoms(use_true_random=True))
def test_a_checkpoint(model: PPO, draw: random.Random) -> None:
    one_checkpoint(model, draw)


def one_checkpoint(model: PPO, draw: random.Random) -> None:
    """A damaged checkpoint, which must be refused; one whose hashes were made anew is refused or makes sense."""
    folder = max(Path(RUN, "checkpoints").iterdir())
    whole = {file.name: file.read_bytes() for file in folder.iterdir()}
    forged = draw.random() < 0.5
    with damage(folder, draw) as what, put_back(folder / STATE_FILE, folder / MANIFEST_FILE):
        name = what.partition(":")[0]
        if (folder / name).is_file() and (folder / name).read_bytes() == whole[name]:
            return
        if forged:
            forge(folder)
            with contextlib.suppress(VLAZooError):
                load_checkpoint(model, folder)
        else:
            with refused(what):
                load_checkpoint(model, folder)


def forge(folder: Path) -> None:
    """Give a checkpoint the hashes of the files that it has."""
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    extend_manifest(folder, [path.name for path in folder.iterdir() if path.is_file()])


@contextlib.contextmanager
def put_back(*files: Path) -> Iterator[None]:
    """Context manager after which files are as they were, but for those that are no files in it."""
    contents = {file: file.read_bytes() for file in files if file.is_file()}
    yield
    for file, content in contents.items():
        file.write_bytes(content)


class refused:
    """Context manager whose body must raise one of our errors."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        assert error is not None, f"loaded: {self._what}"
        return isinstance(error, VLAZooError)


@cases(15)
@given(draw=st.randoms(use_true_random=True))
def test_a_policy(draw: random.Random) -> None:
    one_policy(draw)


def one_policy(draw: random.Random) -> None:
    """A damaged policy folder, in half of the cases without a manifest."""
    best = Path(RUN, "best")
    with damage(best, draw), put_back(best / MANIFEST_FILE):
        if draw.random() < 0.5 and (best / MANIFEST_FILE).is_file():
            (best / MANIFEST_FILE).unlink()
        with contextlib.suppress(VLAZooError):
            VLAPolicy.from_pretrained(best)


@cases(10)
@given(draw=st.randoms(use_true_random=True))
def test_a_dataset(draw: random.Random) -> None:
    one_dataset(draw)


def one_dataset(draw: random.Random) -> None:
    """A damaged dataset: read, and now and then learned from and gone on with."""
    with damage(Path("demos"), draw):
        if draw.random() < 0.2:
            check(["sft", "--env", "Toy-Reach", "--dataset", "demos"], 2)
            check([*COLLECT, "-params", *TINY], 0, 2)
        with contextlib.suppress(VLAZooError):
            read_dataset(Path("demos"))
