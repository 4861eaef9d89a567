"""Commands of a vector environment: their start states, their order, and the end of those without episodes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scripted_simulator import scripted_benchmark

from vla_gym.errors import WorkerFailed
from vla_gym.vector.stage import CommandRunner
from vla_gym.vector.start_states import make_schedule
from vla_gym.workers.messages import Command, PendingCommands, Report
from vla_gym.workers.pool import Pool


class Recorded(Pool):
    """Answers every command with one report."""

    memory = SimpleNamespace(observation={})  # type: ignore[assignment]
    last_failure = "no display"

    def __init__(self) -> None:
        self.report = Report(start_state="ab")
        self.sent: list[Command] = []

    def send(self, commands):  # type: ignore[no-untyped-def]
        self.sent += commands
        return PendingCommands(commands, {command.slot: self.report for command in commands})

    def close(self) -> None:
        pass


def make_runner(kind: str = "grid") -> tuple[CommandRunner, Recorded]:
    benchmark, pool = scripted_benchmark((3, 7), num_trials=1), Recorded()
    schedule = make_schedule(kind, benchmark.tasks, num_envs=2)
    return CommandRunner(benchmark, 2, 4, schedule, pool), pool


def test_three_losses_in_a_row_are_no_accident() -> None:
    runner, pool = make_runner("random")
    runner.run(runner.begin_commands([0, 1]))
    pool.report = Report(truncated=True, lost=True)
    step = runner.step_commands([0], [np.zeros((4, 2), dtype=np.float32)])
    runner.run(step)
    runner.run(step)
    with pytest.raises(WorkerFailed, match=r"3 episodes in a row were lost .*The last failure: no display"):
        runner.run(step)
