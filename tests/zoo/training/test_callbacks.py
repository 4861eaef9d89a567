"""When checkpoints are written, and which policy is the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stable_baselines3.common.callbacks import BaseCallback

from tests.zoo.training.test_checkpoint import build, counters_of, learn
from vla_policies import VLAPolicy
from zoo.training.callbacks import BestPolicy, CheckpointCallback
from zoo.training.checkpoint import Saving, best_success, save_checkpoint

# Runs of a few updates learn nothing, and say so.
pytestmark = [
    pytest.mark.filterwarnings("ignore::zoo.algorithms.update_metrics.TrainingWarning"),
    pytest.mark.processes,
]


def test_the_callback_saves_at_boundaries_past_every_save_freq(tmp_path: Path):
    model = build("ppo")
    saved: list[Path] = []

    def save(model: Any, checkpoints: Path) -> Saving:
        saved.append(save_checkpoint(model, checkpoints))
        return Saving(saved[-1])

    learn(model, 400, CheckpointCallback(tmp_path, save_freq=100, save=save))
    steps = [counters_of(folder)["num_timesteps"] for folder in saved]
    assert steps[-1] == model.num_timesteps
    assert all(later - earlier >= 100 for earlier, later in zip([0, *steps], steps[:-1]))
    assert len(steps) >= 3
    assert len(list((tmp_path / "checkpoints").iterdir())) == len(saved)


def test_the_callback_keeps_the_newest(tmp_path: Path):
    model = build("ppo")
    learn(model, 400, CheckpointCallback(tmp_path, save_freq=1, keep=2))
    steps = sorted(counters_of(folder)["num_timesteps"] for folder in (tmp_path / "checkpoints").iterdir())
    assert len(steps) == 2
    assert steps[-1] == model.num_timesteps


def test_asked_to_stop_it_saves_the_boundary_before_the_rollout(tmp_path: Path):
    model = build("ppo")
    callback = CheckpointCallback(tmp_path)
    learn(model, 10_000, [callback, _Ask(callback, after=8)])
    (latest,) = (tmp_path / "checkpoints").iterdir()
    # Five decisions to a rollout: asked in the second, it went back to the end of the first.
    assert counters_of(latest)["_n_updates"] == 2
    assert counters_of(latest)["num_timesteps"] < model.num_timesteps


class _Ask(BaseCallback):
    def __init__(self, callback: CheckpointCallback, after: int) -> None:
        super().__init__()
        self._callback, self._after = callback, after

    def _on_step(self) -> bool:
        if self.n_calls == self._after:
            self._callback.stop()
        return True


def test_best_is_replaced_only_by_better(tmp_path: Path) -> None:
    model = build("ppo")

    def offer(success: float, *, later: bool = False) -> bool:
        """Offer it to a new keeper: a resumed run knows what it has to beat."""
        best = BestPolicy(tmp_path / "best", model.process_group, later=later)
        return best.offer(model.policy, success, 7)

    assert offer(0.4)
    assert not offer(0.4)
    assert offer(0.5)
    assert not offer(0.45)
    assert best_success(tmp_path / "best") == 0.5
    VLAPolicy.from_pretrained(tmp_path / "best", device="cpu")
    # Of steps that the run is about to make anew, it is no more to beat, nor to be taken for the run's policy.
    BestPolicy(tmp_path / "best", model.process_group, keep_until=7)
    assert best_success(tmp_path / "best") == 0.5
    BestPolicy(tmp_path / "best", model.process_group, keep_until=6)
    assert list(tmp_path.iterdir()) == []
    assert offer(0.5)
    assert offer(0.5, later=True)
    assert not offer(0.45, later=True)
