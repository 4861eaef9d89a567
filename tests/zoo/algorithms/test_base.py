"""Components and state that PPO and GRPO share."""

from __future__ import annotations

import io
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import vla_gym
from tests.zoo.stand_ins import ScriptedVecEnv, StandInPolicy
from vla_gym.errors import BadValue
from zoo import GRPO, PPO
from zoo.config.algorithm_configs import GRPOConfig, PPOConfig

SCRIPT = [(0.0, 3, "on"), (1.0, 1, "terminated")]
TINY = {"backbone": "nano", "backbone_kwargs": {"size": "tiny"}}


def ppo(**settings: Any) -> PPO:
    defaults = {"n_steps": 2, "batch_size": 2, "n_epochs": 1, "device": "cpu", "seed": 0}
    return PPO(StandInPolicy, ScriptedVecEnv([SCRIPT, SCRIPT]), **{**defaults, **settings})


def test_every_setting_becomes_an_attribute_of_its_name():
    envs = vla_gym.make_vec("Toy-Reach", num_envs=2, group_size=2)
    models = {
        PPOConfig: ppo(vf_coef=0.25, target_kl=0.5, micro_batch_size=1, reward_level="action"),
        GRPOConfig: GRPO("VLAPolicy", envs, policy_kwargs=TINY, batch_size=8, target_kl=0.5),
    }
    for config, model in models.items():
        for field in fields(config):
            assert hasattr(model, field.name), field.name
        assert model.target_kl == 0.5
    assert (models[PPOConfig].vf_coef, models[PPOConfig].micro_batch_size) == (0.25, 1)
    assert models[PPOConfig].reward_level == "action"
    assert (models[GRPOConfig].batch_size, models[GRPOConfig].vf_coef) == (8, 0.0)


def test_a_setting_that_does_not_exist_is_refused():
    with pytest.raises(TypeError, match="gama"):
        ppo(gama=0.5)


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
    model.set_env(ScriptedVecEnv([SCRIPT, SCRIPT]))
    assert model.collector().env is model.env


def test_the_learner_is_replaced_with_the_policys_optimiser():
    model = ppo()
    first = model.learner
    assert model.learner is first
    model.policy.optimizer = type(model.policy.optimizer)(model.policy.parameters(), lr=0.1)
    assert model.learner.raw_optimizer is model.policy.optimizer


def test_counters_go_and_come_back():
    model = ppo()
    model.learn(1)
    counters = model.counters()
    # Two decisions of 3 and 1 simulator steps in each of two sub-environments.
    assert (counters.num_timesteps, counters.updates_done, counters.n_updates) == (8, 1, 1)
    other = ppo()
    other.restore_counters(replace(counters, noise_seed=99))
    assert other.counters() == replace(counters, noise_seed=99)
    assert other.rollout_start().number == 1
    assert other.rollout_start().num_timesteps == 8


def test_a_state_of_another_kind_of_environment_is_refused():
    model = ppo()
    model.learn(1)
    state = model.capture_state()
    assert state.env is None
    with pytest.raises(BadValue, match="of another kind"):
        model.restore_state(replace(state, env={"slots": []}))
    model.num_timesteps = 0
    model.restore_state(state)
    assert model.num_timesteps == 8
    assert [info["r"] for info in model.ep_info_buffer] == [1, 1]


def test_parts_of_this_process_are_not_saved(tmp_path: Any):
    model = ppo()
    model.learn(1)
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", env=ScriptedVecEnv([SCRIPT, SCRIPT]))
    assert loaded.rollout_stats is None
    assert loaded.tasks_seen == set()
    assert loaded.noise_seed == model.noise_seed
    assert loaded.collector() is not model.collector()


@pytest.mark.parametrize("policy", ["MultiInputPolicy", "VLAPolicy"])
def test_a_saved_model_takes_the_environments_that_the_constructor_takes(policy: str, tmp_path: Path) -> None:
    def envs() -> vla_gym.VLAVectorEnv:
        return vla_gym.make_vec("Toy-Reach", image_size=36, chunk=2)

    model = PPO(policy, envs(), n_steps=8, batch_size=8, n_epochs=1)
    model.save(tmp_path / "model")
    file = io.BytesIO()
    model.save(file)
    for saved in (tmp_path / "model", str(tmp_path / "model.zip"), file):
        assert PPO.load(saved, env=envs()).learn(8).num_timesteps >= 8
    loaded = PPO.load(tmp_path / "model")
    loaded.set_env(envs())
    assert loaded.learn(8).num_timesteps >= 8


def test_a_saved_model_takes_an_id() -> None:
    file = io.BytesIO()
    PPO("VLAPolicy", "Toy-Reach", n_steps=8).save(file)
    loaded = PPO.load(file, env="Toy-Reach")
    assert loaded.n_envs == 1
    loaded.set_env("Toy-Reach")


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
