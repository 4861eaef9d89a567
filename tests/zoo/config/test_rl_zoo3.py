"""rl_zoo3's own train and enjoy on a registered id."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium as gym
import pytest
import rl_zoo3
from rl_zoo3.enjoy import enjoy
from rl_zoo3.train import train

from vla_policies.policy import VLAPolicy
from zoo.config.rl_zoo3 import hyperparams

ENV = ["--env", "vla_gym/Toy-Reach-v0", "--gym-packages", "vla_gym", "--algo", "ppo"]


def test_entries_name_a_policy_of_ours_and_registered_environments() -> None:
    for name, entry in hyperparams.items():
        assert name == "default" or name in gym.registry
        assert entry["policy"] == "vla_policies.VLAPolicy"
        assert entry["batch_size"] <= entry["n_envs"] * entry["n_steps"]
    assert "default" in hyperparams


@pytest.mark.processes
@pytest.mark.filterwarnings("default")
def test_rl_zoo3_trains_and_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(command, *flags: str) -> str:
        monkeypatch.setattr(sys, "argv", ["rl_zoo3", *ENV, "-f", str(tmp_path), "--device", "cpu", *flags])
        command()
        return capsys.readouterr().out

    small = ["-params", "n_envs:2", "n_steps:16", "batch_size:16", "n_epochs:1"]
    said = call(train, "-n", "64", "--eval-freq", "32", "--eval-episodes", "2", "-conf", "zoo.config.rl_zoo3", *small)
    assert "success_rate" in said
    assert "Eval num_timesteps=64" in said
    run = tmp_path / "ppo" / "vla_gym-Toy-Reach-v0_1"
    model = rl_zoo3.ALGOS["ppo"].load(run / "best_model.zip", device="cpu")
    assert isinstance(model.policy, VLAPolicy)
    said = call(enjoy, "-n", "40", "--no-render")
    assert "Success rate:" in said
    assert "Episodes" in said
