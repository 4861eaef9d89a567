"""The same run on one process and on several: the same numbers, the same checkpoints, the same end."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.zoo.launching import TOY, finish, first_checkpoint, free_port, only_run, same_tensors, start, train, updates

pytestmark = pytest.mark.slow

PPO = (
    *("--algo", "ppo", "-params", "num_envs:8", "n_steps:8", "batch_size:16", "n_epochs:2"),
    *("micro_batch_size:5", "start_sampling:learnability"),
)
GRPO = (
    *("--algo", "grpo", "-params", "num_envs:16", "group_size:4", "batch_size:16", "n_epochs:2"),
    "start_sampling:learnability",
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
def test_two_launchers_that_meet_are_one_run(tmp_path: Path) -> None:
    """As on two machines: each starts one of two processes, and the first one's address is where they meet."""
    port = str(free_port())
    meeting = ("--num_machines", "2", "--main_process_ip", "127.0.0.1", "--main_process_port", port)
    arguments = [*RUN, "-f", str(tmp_path), *PPO]
    nodes = [start(2, arguments, launcher=(*meeting, "--machine_rank", str(node))) for node in range(2)]
    first, second = (finish(node) for node in nodes)
    assert "trained for" in first
    assert "trained for" not in second
    assert len(updates(only_run(tmp_path))) >= 3


@pytest.fixture
def machines() -> Iterator[list[str]]:
    """Two network namespaces, named, with addresses 10.77.0.1 and 10.77.0.2 of one cable; skips where none are made."""
    names = [f"zoo-{os.getpid()}-{number}" for number in range(2)]
    ends = [f"zoo{number}p{os.getpid() % 10**6}" for number in range(2)]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1], "netns", names[1])
        for number, (name, end) in enumerate(zip(names, ends, strict=True)):
            ip("-n", name, "link", "set", end, "name", "cable")
            ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
        yield names
    except FileNotFoundError:
        pytest.skip("needs ip of iproute2")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    finally:
        for name in names:
            with suppress(FileNotFoundError):
                subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.mark.thorough
def test_two_machines_of_two_processes_are_one_run(
    alone: Path, settings: tuple[str, ...], machines: list[str], tmp_path: Path
) -> None:
    meeting = ("--num_machines", "2", "--main_process_ip", "10.77.0.1", "--main_process_port", "29500")
    arguments = [*RUN, "-f", str(tmp_path), *settings]
    nodes = [
        start(
            4,
            arguments,
            launcher=(*meeting, "--machine_rank", str(number)),
            within=("ip", "netns", "exec", name),
            GLOO_SOCKET_IFNAME="cable",
        )
        for number, name in enumerate(machines)
    ]
    for node in nodes:
        finish(node)
    run = only_run(tmp_path)
    same_numbers(run, alone)
    same_tensors(first_checkpoint(alone), first_checkpoint(run), "model.safetensors", 1e-6)


def test_groups_that_do_not_divide_are_refused_in_one_line_before_anything_starts(tmp_path: Path) -> None:
    run = start(2, [*RUN, "-f", str(tmp_path), *GRPO[:2], "-params", "num_envs:12", "group_size:4"])
    output, _ = run.communicate(timeout=120)
    assert run.returncode != 0
    (line,) = [line for line in output.splitlines() if line.startswith("error:")]
    assert "num_envs=12" in line
    assert "Nearest allowed: --num-envs 8 or 16" in line
    assert not list(tmp_path.iterdir())
