"""The loop of `learn`, with rollouts of another source."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from tests.zoo.algorithms.test_base import ppo
from tests.zoo.stand_ins import Rows
from zoo.rollout.stats import RolloutStats
from zoo.rollout.types import OnStep, RolloutStart


class StoppedSource:
    """A source whose second rollout is stopped."""

    def __init__(self, collector: Any) -> None:
        self.collector = collector
        self.obs: dict[str, np.ndarray] = {}
        self.starts: list[tuple[int, int]] = []

    def collect(self, start: RolloutStart, on_step: OnStep) -> RolloutStats | None:
        self.starts.append((start.number, start.num_timesteps))
        stats = self.collector.collect(start, on_step)
        self.obs = self.collector.obs
        return stats if len(self.starts) == 1 else None


class Seen(BaseCallback):
    """Records each decision as callbacks see it."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[int, list[int], list[bool], list[float]]] = []
        self.ends: list[str] = []

    def _on_step(self) -> bool:
        executed = [info["executed"] for info in self.locals["infos"]]
        dones, rewards = self.locals["dones"].tolist(), self.locals["rewards"].tolist()
        self.steps.append((self.model.num_timesteps, executed, dones, rewards))
        return True

    def _on_rollout_end(self) -> None:
        self.ends.append(str(self.locals["rollout_buffer"].advantage_TN.shape))

    def _on_training_end(self) -> None:
        self.ends.append("training")


@pytest.fixture
def model() -> Any:
    model = ppo()
    model.set_logger(Logger(None, [Rows()]))
    return model


def test_a_source_that_is_stopped_ends_training_at_the_update_before(model: Any):
    source = model.rollout_source = StoppedSource(model.collector())
    model.learn(100)
    assert source.starts == [(0, 0), (1, 8)]
    # The state kept is of after the first update, not of the second rollout.
    assert model.train_state.num_timesteps == 8
    assert model.train_state.counters.updates_done == 1
    assert model._last_obs is source.obs


def test_callbacks_see_every_decision_and_the_rollouts_advantages(model: Any):
    seen = Seen()
    model.learn(1, callback=seen)
    assert seen.steps == [(6, [3, 3], [False, False], [0, 0]), (8, [1, 1], [True, True], [1, 1])]
    assert seen.ends == ["torch.Size([2, 2])", "training"]


def test_a_rollout_of_other_processes_shows_callbacks_nothing(model: Any):
    model._setup_learn(1)
    seen: list[Any] = []

    class Empty(BaseCallback):
        def _on_step(self) -> bool:
            seen.append((self.locals["infos"], len(self.locals["dones"]), self.model.num_timesteps))
            return False

    callback = Empty()
    callback.init_callback(model)
    assert not model.after_decision(callback, None)
    assert seen == [([], 0, 0)]


def test_training_that_is_done_keeps_its_last_state(model: Any):
    model.learn(9)
    # Rollouts are of 8 simulator steps: the second overshoots.
    assert model.train_state.num_timesteps == 16
    assert model.counters().progress_remaining == 0.0
    assert len(model.logger.output_formats[0].rows) == 2
