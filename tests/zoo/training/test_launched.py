"""The same run on one process and on several: the same numbers, the same checkpoints, the same end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import zoo.train
from tests.zoo.forks import free_port
from tests.zoo.launching import TINY, TOY, finish, first_checkpoint, only_run, same_tensors, start, train, updates
from zoo.cli.main import guarded

pytestmark = pytest.mark.slow

PPO = (
    *("--algo", "ppo", "-params", "num_envs:8", "n_steps:8", "batch_size:16", "n_epochs:2"),
    *("micro_batch_size:5", "start_sampling:learnability", TINY),
)
GRPO = (
    *("--algo", "grpo", "-params", "num_envs:16", "group_size:4", "batch_size:16", "n_epochs:2"),
    *("start_sampling:learnability", TINY),
)
RUN = (*TOY, "--seed", "1", "-n", "600", "--eval-episodes", "5")


def train_in(folder: Path, processes: int, settings: tuple[str, ...]) -> Path:
    train(processes, [*RUN, "-f", str(folder), *settings])
    return only_run(folder)


def same_numbers(run: Path, expected: Path) -> None:
    assert len(updates(run)) >= 3
    for row, expected_row in zip(updates(run), updates(expected), strict=True):
        assert row == pytest.approx(expected_row, abs=1e-5, nan_ok=True)


@pytest.fixture(scope="module", params=[PPO, GRPO], ids=["ppo", "grpo"])
def settings(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def alone(settings: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_in(tmp_path_factory.mktemp("alone"), 1, settings)


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_the_number_of_processes_changes_nothing(
    processes: int, alone: Path, settings: tuple[str, ...], tmp_path: Path
) -> None:
    run = train_in(tmp_path, processes, settings)
    same_numbers(run, alone)
    checkpoints = first_checkpoint(alone), first_checkpoint(run)
    for file in ("model.safetensors", "optimizer.safetensors", "rollout.safetensors"):
        same_tensors(*checkpoints, file, 1e-5)
    states = [json.loads((folder / "training_state.json").read_text()) for folder in checkpoints]
    for key in ("counters", "env", "rng", "successes", "param_groups", "starts"):
        assert states[0][key] == states[1][key]
    assert (alone / "monitor.csv").read_text().count("\n") == (run / "monitor.csv").read_text().count("\n")
    with np.load(alone / "evaluations.npz") as expected, np.load(run / "evaluations.npz") as got:
        assert all(np.array_equal(got[name], expected[name]) for name in expected)


@pytest.mark.thorough
def test_two_processes_imitate_and_normalise_tasks_as_one(demos: Path, tmp_path: Path) -> None:
    imitated = ("bc_coef:0.2", f"bc_dataset:{demos}", "micro_batch_size:2")
    asked = (*GRPO, *imitated, "advantage:rloo")
    alone, shared = (train_in(tmp_path / str(processes), processes, asked) for processes in (1, 2))
    same_numbers(shared, alone)
    assert all(row["train/actor/bc_loss"] > 0 for row in updates(alone))


@pytest.mark.parametrize(
    "settings", [pytest.param(PPO, id="ppo"), pytest.param(GRPO, id="grpo", marks=pytest.mark.thorough)], indirect=True
)
def test_a_run_goes_on_with_another_number_of_processes(alone: Path, tmp_path: Path) -> None:
    train(2, ["-i", str(first_checkpoint(alone)), "-f", str(tmp_path)])
    after = updates(only_run(tmp_path))
    expected = {row["step"]: row for row in updates(alone)}
    assert after
    for row in after:
        assert row == pytest.approx(expected[row["step"]], abs=1e-5, nan_ok=True)


@pytest.mark.thorough
def test_two_launchers_that_meet_are_one_run(alone: Path, settings: tuple[str, ...], tmp_path: Path) -> None:
    """As on two machines: each starts one of two processes, and the first one's address is where they meet."""
    meeting = ("--num_machines", "2", "--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port()))
    arguments = [*RUN, "-f", str(tmp_path), *settings]
    nodes = [start(2, arguments, launcher=(*meeting, "--machine_rank", str(node))) for node in range(2)]
    first, second = (finish(node) for node in nodes)
    assert "trained for" in first
    assert "trained for" not in second
    same_numbers(only_run(tmp_path), alone)
    same_tensors(first_checkpoint(alone), first_checkpoint(only_run(tmp_path)), "model.safetensors", 1e-6)


def test_groups_that_do_not_divide_are_refused_in_one_line_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    asked = [*RUN, "-f", str(tmp_path / "logs"), *GRPO[:2], "-params", "num_envs:12", "group_size:4"]
    assert guarded(zoo.train.run, asked) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "num_envs=12" in line
    assert "Nearest allowed: --num-envs 8 or 16" in line
    assert not list(tmp_path.iterdir())
