"""Which run and which of its policies flags mean."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from tests.zoo.test_enjoy import begun
from zoo import enjoy
from zoo.cli.run_choice import chosen_run
from zoo.runs.folder import RunFolder


def parsed(*argv: str) -> argparse.Namespace:
    return enjoy.parser().parse([*argv])


def saved(run: RunFolder, *steps: int) -> RunFolder:
    for step in steps:
        run.checkpoint(step).mkdir(parents=True)
        (run.checkpoint(step) / "config.json").write_text("{}")
    return run


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`logs/ppo/Toy-Reach_1` with two checkpoints, `_2`, and one of GRPO, which is the newest; no agents shipped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("zoo.cli.run_choice.agents_for", lambda env_id: [])
    saved(begun(Path("logs"), "ppo", at=100.0), 64, 128)
    begun(Path("logs"), "ppo", at=200.0)
    begun(Path("logs"), "grpo", at=300.0)
    return Path("logs")


@pytest.mark.parametrize(
    ("flags", "run"),
    [
        ("--env Toy-Reach", "logs/grpo/Toy-Reach_1"),
        ("--env Toy-Reach --algo ppo -f logs", "logs/ppo/Toy-Reach_2"),
        ("--env Toy-Reach --algo ppo --exp-id 1", "logs/ppo/Toy-Reach_1"),
        ("--env Toy-Reach --exp-id 2", "logs/ppo/Toy-Reach_2"),
        ("--env Toy-Reach --exp-id 2 --load-best", "logs/ppo/Toy-Reach_2/best"),
        ("-i logs/ppo/Toy-Reach_1 --load-last-checkpoint", "logs/ppo/Toy-Reach_1/checkpoints/step_128"),
        ("-i logs/ppo/Toy-Reach_1 --load-checkpoint 64", "logs/ppo/Toy-Reach_1/checkpoints/step_64"),
        ("-i me/run --deterministic", "me/run"),
        ("--policy nano", None),
    ],
)
def test_a_run_is_found_and_its_policy_chosen(logs: Path, flags: str, run: str | None) -> None:
    assert chosen_run(parsed(*flags.split())) == run


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("", "give --env ID (its newest run)"),
        ("--env Toy-Reech", "Did you mean 'Toy-Reach'"),
        ("--env Toy-Reach -f elsewhere", "Train one: vla-zoo train --algo ppo --env Toy-Reach"),
        ("--env Toy-Reach --exp-id 1", "is logs/grpo/Toy-Reach_1 and logs/ppo/Toy-Reach_1; say --algo"),
        ("--env Toy-Reach --algo ppo --exp-id 7", "there: logs/ppo/Toy-Reach_1, logs/ppo/Toy-Reach_2"),
        ("-i logs/ppo/Toy-Reach_1 --algo ppo", "--algo chooses among the runs under -f; leave it or -i"),
        ("--policy nano --load-best", "--load-best chooses among the runs under -f; leave it or --policy nano out"),
        ("-i me/run --load-best", "got the Hub id 'me/run'; fetch it: vla-zoo load_from_hub me/run"),
        ("-i logs/ppo/Toy-Reach_1 --load-checkpoint 100", "no checkpoint at 100 steps, but at 64, 128"),
        ("-i logs/ppo/Toy-Reach_2 --load-last-checkpoint", "has no checkpoint, but at none"),
    ],
)
def test_what_is_not_there_is_named(logs: Path, flags: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        chosen_run(parsed(*flags.split()))
    assert "\n" not in str(caught.value)


def test_without_a_run_an_agent_of_the_package_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = ["agents/grpo/Toy-Reach", "agents/sft/Toy-Reach"]
    monkeypatch.setattr("zoo.cli.run_choice.agents_for", lambda env_id: shipped)
    asked = ["--env", "Toy-Reach", "-f", str(tmp_path)]
    assert chosen_run(parsed(*asked)) == "agents/grpo/Toy-Reach"
    assert chosen_run(parsed(*asked, "--algo", "sft")) == "agents/sft/Toy-Reach"
