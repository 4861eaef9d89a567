"""The loop of `learn`: constructor, components, state, saved models, callbacks, rollouts of another source."""

from __future__ import annotations

import inspect
import io
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

import vla_gym
from tests.zoo.stand_ins import Rows, StandInPolicy, scripted_envs
from vla_gym.errors import BadValue, UnknownName
from zoo import GRPO, PPO
from zoo.config.algorithm_configs import GRPOConfig, PPOConfig
from zoo.rollout.collector import OnStep, RolloutStart
from zoo.rollout.stats import RolloutStats

SCRIPT = [(0.0, 3, "on"), (1.0, 1, "terminated")]
TINY = {"backbone": "nano", "backbone_kwargs": {"size": "tiny"}}


def ppo(**settings: Any) -> PPO:
    defaults = {"n_steps": 2, "batch_size": 2, "n_epochs": 1, "device": "cpu", "seed": 0}
    return PPO(StandInPolicy, scripted_envs([SCRIPT, SCRIPT]), **{**defaults, **settings})


def test_a_setting_that_does_not_exist_is_refused():
    with pytest.raises(UnknownName, match="Did you mean 'gamma'"):
        ppo(gama=0.5)
    with pytest.raises(BadValue, match="huber_delta must be above 0"):
        ppo(huber_delta=-0.5)


@pytest.mark.parametrize("policy", ["MlpPolicy", "agents/sft/LIBERO-Goal/best", 3, object])
@pytest.mark.parametrize("algorithm", [PPO, GRPO])
def test_any_other_policy_is_refused(algorithm: Any, policy: object):
    with pytest.raises(BadValue, match=r"stable_baselines3\.PPO"):
        algorithm(policy, "Toy-Reach")


def test_the_signature_shows_the_settings_and_their_defaults():
    for algorithm, config in ((PPO, PPOConfig), (GRPO, GRPOConfig)):
        parameters = inspect.signature(algorithm).parameters
        for field in fields(config):
            assert parameters[field.name].default == field.default
    assert list(inspect.signature(PPO).parameters)[:4] == ["policy", "env", "learning_rate", "n_steps"]
    model = PPO("VLAPolicy", "Toy-Reach", 1e-3, 8, 4, policy_kwargs=TINY)
    assert (model.learning_rate, model.n_steps, model.batch_size) == (1e-3, 8, 4)
    with pytest.raises(BadValue, match="PPO: "):
        PPO("VLAPolicy")


@pytest.mark.filterwarnings("ignore:rich is experimental")
def test_the_progress_bar_counts_the_steps_of_the_model():
    model = ppo()
    bars = []

    def look(local: Any, _: Any) -> bool:
        bars.append((local["callback"].callbacks[-1].pbar.n, model.num_timesteps))
        return True

    model.learn(12, callback=look, progress_bar=True)
    assert model.num_timesteps >= 12
    assert [done for done, _ in bars[1:]] == [steps for _, steps in bars[:-1]]


def test_the_collector_is_replaced_when_what_it_holds_is():
    model = ppo()
    first = model.collector()
    assert model.collector() is first
    model.noise_seed += 1
    second = model.collector()
    assert second is not first
    assert second.seed == model.noise_seed
    model.set_env(scripted_envs([SCRIPT, SCRIPT]))
    assert model.collector().env is model.env


def test_a_saved_model_takes_the_environments_that_the_constructor_takes(tmp_path: Path) -> None:
    def envs() -> vla_gym.VLAVectorEnv:
        return vla_gym.make_vec("Toy-Reach", image_size=36, chunk=2)

    model = PPO("VLAPolicy", envs(), n_steps=8, batch_size=8, n_epochs=1)
    model.save(tmp_path / "model")
    file = io.BytesIO()
    model.save(file)
    for saved in (tmp_path / "model", str(tmp_path / "model.zip"), file):
        assert PPO.load(saved, env=envs()).learn(8).num_timesteps >= 8
    loaded = PPO.load(tmp_path / "model")
    loaded.set_env(envs())
    assert loaded.learn(8).num_timesteps >= 8


def test_a_folder_is_no_saved_model(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"is a folder.*policy_kwargs"):
        PPO.load(tmp_path)


def test_a_model_is_loaded_by_the_algorithm_that_saved_it(tmp_path: Path) -> None:
    ppo().save(tmp_path / "model")
    with pytest.raises(BadValue, match=r"'.*model' was saved by another algorithm than GRPO"):
        GRPO.load(tmp_path / "model")


def test_without_an_environment_nothing_is_learnt(tmp_path: Path) -> None:
    ppo().save(tmp_path / "model")
    with pytest.raises(BadValue, match=r"no environment.*set_env"):
        PPO.load(tmp_path / "model").learn(1)


class StoppedSource:
    """A source whose second rollout is stopped."""

    off_policy = False

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
    source = StoppedSource(model.collector())
    model.rollout_source = source
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


def test_training_that_is_done_keeps_its_last_state(model: Any):
    model.learn(9)
    # Rollouts are of 8 simulator steps: the second overshoots.
    assert model.train_state.num_timesteps == 16
    assert model.train_state.counters.progress_remaining == 0.0
    assert len(model.logger.output_formats[0].rows) == 2
