"""A fine-tuning run that was stopped goes on as if it never had been, bit for bit; what cannot go on says why."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.zoo.evaluation.test_evaluator import episode
from tests.zoo.imitation.test_families import LORA, base
from tests.zoo.launching import TOY, only_run
from vla_gym.errors import WorkerFailed
from zoo import sft
from zoo.cli.main import guarded
from zoo.demonstrations.lerobot_reader import read_dataset
from zoo.demonstrations.lerobot_writer import LeRobotWriter
from zoo.demonstrations.recorder import Demonstration
from zoo.distributed.learner import Learner
from zoo.imitation import loss
from zoo.imitation.frames import Frames
from zoo.runs.folder import RunFolder
from zoo.training import evaluation

pytestmark = pytest.mark.processes

pytest.importorskip("pyarrow")
TINY = ("-params", "policy_kwargs:{backbone_kwargs: {size: tiny}, optimizer_kwargs: {muon: true}}")
SIZE = ("-n", "7", "--batch-size", "4", "--seed", "0", "--eval-freq", "3", "--eval-episodes", "2", "--augment")


def during_update(number: int, act: Callable[[], None]) -> Callable[[Learner], Any]:
    """`Learner.apply` that calls `act` in the update of that number, from 1."""
    apply, updates = Learner.apply, 0

    def counted(self: Learner) -> Any:
        nonlocal updates
        updates += 1
        if updates == number:
            act()
        return apply(self)

    return counted


def send(which: signal.Signals) -> Callable[[], None]:
    """A function that sends this process a signal."""
    return lambda: os.kill(os.getpid(), which)


def fine_tune(demos: Path, folder: Path, *flags: str) -> int:
    return guarded(sft.run, [*TOY, "--dataset", str(demos), "-f", str(folder), *SIZE, *(flags or TINY)])


def go_on(run: Path, *flags: str) -> int:
    return guarded(sft.run, ["-i", str(run), "--num-threads", "1", *flags])


def steps(run: Path) -> list[int]:
    return RunFolder(run).saved_steps()


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_same(run: Path, whole: Path) -> None:
    """Numbers, evaluations and policies are equal to the byte, and neither has a checkpoint left."""
    assert metrics(run) == metrics(whole)
    with np.load(run / "evaluations.npz") as got, np.load(whole / "evaluations.npz") as expected:
        assert {name: got[name].tolist() for name in got} == {name: expected[name].tolist() for name in expected}
    weights = sorted(file.name for file in (whole / "best").glob("*.safetensors"))
    assert weights
    for name in (*weights, "score.json"):
        assert (run / "best" / name).read_bytes() == (whole / "best" / name).read_bytes()
    updates = [json.loads((path / "evaluation.json").read_text())["updates"] for path in (run, whole)]
    assert updates[0] == updates[1]
    assert not (run / "checkpoints").exists()
    assert not (whole / "checkpoints").exists()


@pytest.fixture(scope="module")
def whole(demos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    assert fine_tune(demos, folder) == 0
    return only_run(folder)


@pytest.mark.parametrize("which", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)])
def test_a_stopped_run_goes_on_bit_for_bit(
    which: signal.Signals,
    demos: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "apply", during_update(5, send(which)))
        assert fine_tune(demos, tmp_path) == (130 if which is signal.SIGINT else 0)
    run = only_run(tmp_path)
    assert f"stopped and saved; go on with: vla-zoo sft -i {run}\n" in capsys.readouterr().out
    assert steps(run) == [5]
    assert metrics(run) == metrics(whole)[:6]  # an evaluation has a line of its own
    assert go_on(run) == 0
    assert "7 updates of 4, going on at 5" in capsys.readouterr().out
    assert_same(run, whole)
    assert len((run / "command.txt").read_text().splitlines()) == 2


@pytest.mark.thorough
@pytest.mark.parametrize(("family", "options"), [("nano-flow", None), ("openvla-oft", LORA)])
def test_noise_and_adapters_go_on_too(
    family: str, options: dict[str, Any] | None, demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if options is None:
        flags = ["--policy", family, *TINY]
    else:
        kwargs = "policy_kwargs:" + json.dumps({"backbone_kwargs": options})
        flags = ["--policy", str(base(family, tmp_path / "base")), "-params", kwargs]
    assert fine_tune(demos, tmp_path / "whole", *flags) == 0
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "apply", during_update(5, send(signal.SIGTERM)))
        assert fine_tune(demos, tmp_path / "stopped", *flags) == 0
    run = only_run(tmp_path / "stopped")
    assert (run / "checkpoints/step_5/adapter_config.json").is_file() == (options is not None)
    assert go_on(run) == 0
    assert_same(run, only_run(tmp_path / "whole"))


def scripted(monkeypatch: pytest.MonkeyPatch, results: Sequence[Sequence[bool]]) -> None:
    """Evaluations that come out so, one after the other."""
    left = iter(results)
    monkeypatch.setattr(
        evaluation, "evaluate", lambda *args, **kwargs: [episode(0, k, done) for k, done in enumerate(next(left))]
    )


def test_a_killed_run_goes_on_from_its_newest_checkpoint_and_keeps_a_better_policy(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def die() -> None:
        raise RuntimeError("killed")

    yes, no = (True, True), (False, False)
    flags = ("--save-freq", "2", "--eval-freq", "1", *TINY)
    with monkeypatch.context() as patch:
        scripted(patch, [no, (True, False), no, no, yes])
        patch.setattr(Learner, "apply", during_update(6, die))
        with pytest.raises(RuntimeError, match="killed"):
            fine_tune(demos, tmp_path, *flags)
    run = only_run(tmp_path)
    assert steps(run) == [4]  # the one before is gone
    best = (run / "best" / "model.safetensors").read_bytes()
    scripted(monkeypatch, [(True, False)] * 3)
    capsys.readouterr()
    assert go_on(run) == 0
    assert "100.0%" in capsys.readouterr().out  # the table is of what is kept
    assert (run / "best" / "model.safetensors").read_bytes() == best
    assert json.loads((run / "evaluation.json").read_text())["updates"] == 5
    with np.load(run / "evaluations.npz") as file:
        assert file["timesteps"].tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert file["successes"].sum(axis=1).tolist() == [0, 1, 0, 0, 1, 1, 1]
    assert [row["step"] for row in metrics(run) if "train/loss" in row] == [1, 2, 3, 4, 5, 6, 7]


def test_a_simulator_lost_while_evaluating_loses_no_update(
    demos: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise WorkerFailed("Toy-Reach, task 0, trial 0: it died")

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "evaluate", fail)
        assert fine_tune(demos, tmp_path) == 2
    run = only_run(tmp_path)
    assert f"saved; go on with: vla-zoo sft -i {run}\n" in capsys.readouterr().out
    assert steps(run) == [3]
    assert go_on(run) == 0
    assert_same(run, whole)


@pytest.fixture(scope="module")
def stopped(demos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint after 5 of 7 updates."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "apply", during_update(5, send(signal.SIGTERM)))
        assert fine_tune(demos, folder) == 0
    return only_run(folder)


def complaint(capsys: pytest.CaptureFixture[str], run: Path, *flags: str) -> str:
    """The one line that `zoo.sft -i` ends with."""
    capsys.readouterr()
    assert go_on(run, *flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("name", ["optimizer.safetensors", "model.safetensors", "training_state.json"])
def test_a_damaged_checkpoint_is_named(
    name: str, stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(stopped, tmp_path / "run")
    with (copy / "checkpoints" / "step_5" / name).open("r+b") as file:
        file.truncate(100)
    assert name in complaint(capsys, copy)
    assert metrics(copy) == metrics(stopped)


def test_the_dataset_may_move_but_not_change(
    demos: Path, stopped: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(stopped, tmp_path / "run")
    config = (copy / "config.yml").read_text()
    # An episode fewer than there was.
    (copy / "config.yml").write_text(config.replace("episodes: null", "episodes: 2"))
    assert "does not hold what" in complaint(capsys, copy)
    (copy / "config.yml").write_text(config)
    for name, changed in (("told", lambda one: replace(one, instruction="another")), ("seen", inverted)):
        episodes = list(map(changed, read_dataset(demos)))
        LeRobotWriter(tmp_path / name, {}, fps=10).add(episodes, tried=len(episodes))
        assert "images, sentences or actions are others" in complaint(capsys, copy, "--dataset", str(tmp_path / name))
    assert go_on(copy, "--dataset", str(shutil.copytree(demos, tmp_path / "moved"))) == 0
    assert_same(copy, whole)


def inverted(one: Demonstration) -> Demonstration:
    """The episode in the opposite colours."""
    return replace(one, images={camera: 255 - np.asarray(image) for camera, image in one.images.items()})


def test_a_checkpoint_of_an_earlier_version_is_gone_on_with(
    demos: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = Frames.digests
    with monkeypatch.context() as patch:
        patch.setattr(Frames, "digests", lambda frames: digests(frames)[1:])
        patch.setattr(Learner, "apply", during_update(5, send(signal.SIGTERM)))
        assert fine_tune(demos, tmp_path) == 0
    run = only_run(tmp_path)
    assert go_on(run) == 0
    assert_same(run, whole)


def test_a_gradient_that_is_not_finite_ends_the_run(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    actual = loss.imitation_loss
    monkeypatch.setattr(loss, "imitation_loss", lambda *args, **how: actual(*args) * float("nan"))
    assert fine_tune(demos, tmp_path) == 2
    assert "the gradient of update 1 is not finite" in capsys.readouterr().err
    assert not list(tmp_path.glob("sft/*"))
