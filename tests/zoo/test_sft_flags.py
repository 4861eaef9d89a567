"""Which fine-tuning runs go on, with which flags; what may not says why in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vla_gym.errors import BadValue, UnknownName
from zoo import sft, train
from zoo.cli.main import guarded
from zoo.cli.run_flags import resolve_new_run
from zoo.config.run_config import sft_config
from zoo.runs.folder import RunFolder, create_run_folder, describe_run
from zoo.sft import find_stopped_run, open_new_finetuning, resolve_resumed_finetuning


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """What a run of 7 updates that was stopped after 5 leaves of its settings."""
    dataset = tmp_path / "demos"
    dataset.mkdir()
    flags = ["--env", "Toy-Reach", "--dataset", str(dataset), "-n", "7", "--batch-size", "4", "--seed", "3"]
    config = open_new_finetuning(sft.parser().parse(flags))[0]
    run = create_run_folder(tmp_path, "sft", "Toy-Reach")
    describe_run(run, config=config, args={}, command=["python"], protocol={})
    run.checkpoint(5).mkdir(parents=True)
    return run


def test_a_dataset_is_named_once(tmp_path: Path, run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    demos, again = tmp_path / "demos", tmp_path / "again"
    again.symlink_to(demos)
    for other in (demos, again, f"{demos}/../demos"):
        asked = ["--env", "Toy-Reach", "--dataset", str(demos), str(other)]
        with pytest.raises(BadValue, match=rf"--dataset names '{other}' twice"):
            open_new_finetuning(sft.parser().parse(asked))
    assert "names" in complaint(capsys, run.path, "--dataset", str(demos), str(demos))


@pytest.mark.parametrize(
    ("flags", "updates"), [([], 250), (["-n", "10"], 2), (["-n", "3"], 1), (["--save-freq", "0"], 0)]
)
def test_a_checkpoint_is_due_every_quarter(flags: list[str], updates: int) -> None:
    args = sft.parser().parse(["--env", "Toy-Reach", "--dataset", "x", *flags])
    assert open_new_finetuning(args)[0].save_freq == updates


def complaint(capsys: pytest.CaptureFixture[str], path: Path, *flags: str) -> str:
    """The one line that `zoo.sft -i` ends with."""
    assert guarded(sft.run, ["-i", str(path), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_run_that_goes_on_is_the_stored_one_but_for_what_may_change(run: RunFolder, tmp_path: Path) -> None:
    point = find_stopped_run(str(run.path))
    assert (point.step, point.in_place) == (5, True)
    assert resolve_resumed_finetuning(sft.parser().parse([]), point) == run.config()
    flags = ["--dataset", str(tmp_path), "--micro-batch-size", "2", "--save-freq", "3", "--eval-freq", "2"]
    config = resolve_resumed_finetuning(sft.parser().parse(flags), point)
    assert (config.save_freq, config.eval_freq, config.seed) == (3, 2, 3)
    learning = sft_config(config)
    assert (learning.folders, learning.micro_batch_size, learning.batch_size) == ((tmp_path,), 2, 4)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["-n", "9"], "-n cannot change when a run goes on with -i: its learning rate falls to 0 over 7 updates"),
        (["--env", "MetaWorld/reach"], "--env MetaWorld/reach does not fit the run"),
        (["--batch-size", "8"], "--batch-size cannot change when a run goes on with -i; allowed: --device,"),
        (["--dataset", "elsewhere"], "is not in 'elsewhere' (any more); if it was moved, say where it is"),
    ],
)
def test_flags_that_would_make_it_another_run_are_refused(
    flags: list[str], says: str, run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in complaint(capsys, run.path, *flags)


def test_a_run_that_ended_is_told_from_one_that_left_no_checkpoint(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    run.checkpoint(5).rmdir()
    assert "has no checkpoint to resume from" in complaint(capsys, run.path)
    run.best.mkdir()
    (run.best / "config.json").write_text("{}")
    (run.path / "metrics.jsonl").write_text('{"step": 6}\n')
    assert "has no checkpoint to resume from" in complaint(capsys, run.path)
    (run.path / "metrics.jsonl").write_text('{"step": 6}\n{"step": 7}\n')
    assert "has no checkpoint to resume from" in complaint(capsys, run.path)  # killed in its last evaluation
    np.savez(run.path / "evaluations.npz", timesteps=[7], results=[[1.0]], ep_lengths=[[3]], successes=[[True]])
    assert f"has made all its 7 updates; to learn more, start from its policy with --policy {run.best}" in (
        complaint(capsys, run.path)
    )


def test_one_checkpoint_does_not_begin_another_run(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert "in its own run folder only: -i" in complaint(capsys, run.checkpoint(5))


def test_a_folder_for_new_runs_is_refused_when_a_run_goes_on(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "-f elsewhere is for new run folders" in complaint(capsys, run.path, "-f", "elsewhere")
    assert "is not in 'gone'" in complaint(capsys, run.path, "-f", str(run.path.parent.parent), "--dataset", "gone")


def test_each_command_names_the_other_for_the_others_runs(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = create_run_folder(tmp_path, "ppo", "Toy-Reach")
    config = resolve_new_run(train.parser().parse(["--env", "Toy-Reach", "--seed", "0"]))
    describe_run(trained, config=config, args={}, command=["python"], protocol={})
    assert f"is a run of vla-zoo train: go on with vla-zoo train -i {trained.path}" in complaint(capsys, trained.path)
    assert guarded(train.run, ["-i", str(run.path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"is a run of vla-zoo sft: go on with vla-zoo sft -i {run.path}" in line


def test_runs_from_when_frames_had_weights_go_on_without(run: RunFolder) -> None:
    config = run.path / "config.yml"
    former = "  weight: none\n  beta: 1.0\n  gamma: 0.99\n"
    config.write_text(config.read_text().replace("algo_kwargs:\n", f"algo_kwargs:\n{former}"))
    point = find_stopped_run(str(run.path))
    assert sft_config(resolve_resumed_finetuning(sft.parser().parse([]), point)).batch_size == 4
    config.write_text(config.read_text().replace("weight: none", "weight: success"))
    with pytest.raises(UnknownName, match="weight"):
        find_stopped_run(str(run.path))
