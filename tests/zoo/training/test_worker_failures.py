"""Simulators that die under training and under an evaluation, on Toy-Reach in worker processes."""

from __future__ import annotations

import csv
import json
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.zoo.launching import TINY, TOY
from vla_gym import VLAVectorEnv, WorkerRestarted, make_vec
from vla_gym.errors import WorkerFailed
from zoo import train as train_command
from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.evaluation.evaluator import choose_start_states, evaluate

pytestmark = pytest.mark.processes


def train(folder: Path, algo: str, *flags: str) -> Path:
    own = ["n_steps:4"] if algo == "ppo" else ["group_size:2"]
    pairs = ["num_envs:4", "num_workers:2", "eval_episodes:0", "batch_size:16", "n_epochs:1", TINY, *own]
    argv = ["--algo", algo, *TOY, "--seed", "0", "-n", "300", "-f", str(folder), *flags]
    assert train_command.run([*argv, "-params", *pairs]) == 0
    return folder / algo / "Toy-Reach_1"


@pytest.fixture
def kill_a_worker_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of slots 0 and 1 dies after the seventh decision."""
    after_decision, decisions = VLAOnPolicyAlgorithm._after_decision, 0

    def kill(self: VLAOnPolicyAlgorithm, *args: Any, **kwargs: Any) -> bool:
        nonlocal decisions
        decisions += 1
        if decisions == 7:
            os.kill(self.envs.worker_pids[0], signal.SIGKILL)
        return after_decision(self, *args, **kwargs)

    monkeypatch.setattr(VLAOnPolicyAlgorithm, "_after_decision", kill)


@pytest.mark.usefixtures("kill_a_worker_once")
@pytest.mark.parametrize("algo", ["ppo", "grpo"])
def test_training_goes_on_and_counts_what_was_lost(
    algo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path, algo)
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if line.startswith("warning: worker 0 ")]
    assert "was killed by SIGKILL" in line
    assert "[Toy-Reach, slot 0, task" in line or "[Toy-Reach, slot 1, task" in line
    assert "started anew" in line
    rows = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    lost = [row["env/episodes_lost"] for row in rows if "env/episodes_lost" in row]
    # Both slots of the worker, each unless its episode happened to be over.
    assert 1 <= sum(lost) <= 2
    counted = sum(row.get("env/num_trajectories", 0) for row in rows)
    with (run / "monitor.csv").open(newline="") as file:
        assert len(list(csv.reader(file))) - 2 == counted


@pytest.mark.usefixtures("kill_a_worker_once")
def test_training_stops_when_asked_to(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match=r"worker 0 .*SIGKILL.*Toy-Reach, slot \d, task \d \(reach_"):
        train(tmp_path, "ppo", "--on-worker-error", "raise")


class Assassin:
    """Acts at random, and kills a worker before the decisions named."""

    def __init__(self, envs: VLAVectorEnv, *when: int) -> None:
        self._envs, self._when, self._decisions = envs, when, 0
        self._rng = np.random.default_rng(0)

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        self._decisions += 1
        if self._decisions in self._when:
            os.kill(self._envs.worker_pids[0], signal.SIGKILL)
        batch = len(observation["instruction"])
        return self._rng.uniform(-1, 1, (batch, 4, 2)).astype(np.float32), None


def test_an_evaluation_skips_no_cell() -> None:
    envs = make_vec("Toy-Reach", 3, chunk=4, num_workers=2, autoreset_mode="disabled", on_worker_error="restart")
    cells = choose_start_states(envs.benchmark.tasks, 12)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            episodes = evaluate(Assassin(envs, 2, 7), envs, cells)
    finally:
        envs.close()
    assert [one.category for one in said] == [WorkerRestarted] * 2
    assert [(one.task_id, one.trial_id) for one in episodes] == [(c.task_id, c.trial_id) for c in cells]
    assert all(one.length > 0 for one in episodes)
