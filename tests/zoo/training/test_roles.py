"""Roles on different ranks change who works, not what comes out: the same losses as one process with every role."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.zoo.launching import TINY, TOY, only_run, train, updates

pytestmark = pytest.mark.slow

PPO = (
    *("--algo", "ppo", "-params", "num_envs:8", "n_steps:8", "batch_size:16", "n_epochs:2"),
    *("start_sampling:learnability", TINY),
)
GRPO = ("--algo", "grpo", "-params", "num_envs:16", "group_size:4", "batch_size:16", "n_epochs:2", TINY)
RUN = (*TOY, "--seed", "1", "-n", "600", "--eval-episodes", "0")
SEPARATE = "env=0-1,rollout=2,actor=3"
HYBRID = "env=0-1,rollout=2-3,actor=0-3"
MIXED = "env=0,rollout=1-2,actor=1,3"
COMPARED = ("train/", "rollout/success_once", "rollout/advantages_mean", "env/")


def train_in(folder: Path, processes: int, *settings: str) -> list[dict[str, float]]:
    train(processes, [*RUN, "-f", str(folder), *settings])
    return updates(only_run(folder))


def compared(row: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in row.items() if key.startswith(COMPARED)}


@pytest.mark.parametrize(
    ("settings", "placement"),
    [
        pytest.param(PPO, MIXED, id="ppo-mixed"),
        pytest.param(PPO, SEPARATE, id="ppo-separate", marks=pytest.mark.thorough),
        pytest.param(GRPO, HYBRID, id="grpo-hybrid", marks=pytest.mark.thorough),
    ],
)
def test_a_placement_changes_nothing(settings: tuple[str, ...], placement: str, tmp_path: Path) -> None:
    alone = train_in(tmp_path / "alone", 1, *settings)
    rows = train_in(tmp_path / "placed", 4, "--placement", placement, *settings)
    assert len(rows) == len(alone) >= 3
    for number, (row, expected) in enumerate(zip(rows, alone, strict=True)):
        # Every update learns from decisions of the newest weights.
        assert row["rollout/policy_version"] == number
        assert row["rollout/staleness"] == 0
        assert compared(row) == pytest.approx(compared(expected), abs=1e-5, nan_ok=True)


@pytest.mark.thorough
def test_collecting_may_run_ahead_by_a_stated_number_of_updates(tmp_path: Path) -> None:
    ahead = ("--placement", "env=0,rollout=1,actor=2", "--max-staleness", "2")
    rows = train_in(tmp_path, 3, *ahead, *PPO)
    versions = [row["rollout/policy_version"] for row in rows]
    assert versions == [max(0, number - 2) for number in range(len(rows))]
    assert [row["rollout/staleness"] for row in rows[:3]] == [0, 1, 2]
