"""DSRL: noise as the action of Stable-Baselines3's SAC, of a flow policy whose weights stay as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import CallbackList

import vla_gym
from tests.zoo.off_policy.test_qc import learn
from tests.zoo.training.test_checkpoint import StopIn
from vla_gym.errors import BadValue
from vla_policies import VLAPolicy
from vla_policies.actions.noise import SlotNoise
from vla_policies.flow_backbone import FIXED_NOISE_SEED
from vla_policies.steering import SeenByFlow
from zoo.off_policy.dsrl import DSRL
from zoo.off_policy.replay import NONE
from zoo.training.checkpoint import load_checkpoint, save_checkpoint

FLOW = {"backbone": "nano-flow", "backbone_kwargs": {"size": "tiny"}}


def build(folder: Path | None = None, **settings: Any) -> DSRL:
    envs = vla_gym.make_vec("Toy-Reach", num_envs=4, chunk=4, seed=5)
    small = {"n_steps": 5, "batch_size": 8, "learning_starts": 8, "updates_per_decision": 0.2}
    model = DSRL("VLAPolicy", envs, seed=3, device="cpu", policy_kwargs=FLOW, **{**small, **settings})
    model.replay_folder = folder
    return model


@torch.no_grad()
def test_the_policys_own_noise_gives_the_policys_own_actions() -> None:
    model = build()
    policy, obs = model.policy, model.env.reset()
    backbone: Any = policy.backbone
    shape = (backbone.horizon, backbone.flow_width)
    own_HD = torch.randn(shape, generator=torch.Generator().manual_seed(FIXED_NOISE_SEED))
    seen = SeenByFlow.of(policy, obs)
    got = seen.chunks(policy, own_HD.flatten().expand(4, -1))
    policy.steer(None)
    np.testing.assert_allclose(got, policy.predict(obs, deterministic=True)[0], atol=1e-5)
    first_D = own_HD[0]
    torch.testing.assert_close(
        seen.chunks(policy, first_D.expand(4, -1)), seen.chunks(policy, first_D.repeat(shape[0]).expand(4, -1))
    )
    # The observation: the head's hidden state at t = 1 and x = 0, then the proprioception.
    hidden = backbone.denoise(seen.context, torch.zeros(4, *shape), torch.ones(4)).hidden_BHE.mean(dim=1)
    torch.testing.assert_close(seen.feature_BE, torch.cat([hidden, torch.from_numpy(obs["state"])], dim=1))


@pytest.mark.parametrize("reward", ["step_cost", "environment"])
def test_a_decision_costs_one_until_the_task_is_solved(reward: str) -> None:
    model = build(reward=reward, learning_starts=10**6)
    model.learn(500, CallbackList([]))
    assert model.replay is not None
    columns, rows = model.replay.columns, model.replay.rows()
    solved = columns["solved"][rows]
    expected = solved.astype(float) - (1.0 if reward == "step_cost" else 0.0)
    np.testing.assert_array_equal(columns["reward"][rows, 0], expected)
    assert solved.any()
    wrong = columns["ends"][rows] & ~solved  # another block was touched, or time was up, after which the return goes on
    assert {bool(one) for one in columns["next"][rows][wrong] == NONE} == {True, False}
    assert (columns["next"][rows][solved] == NONE).all()
    assert np.abs(columns["action"][rows]).max() <= 1.0


def test_a_resumed_run_repeats_the_uninterrupted_one_and_the_policy_stays(tmp_path: Path) -> None:
    whole = learn(build(tmp_path / "whole"), 320)
    stopped = build(tmp_path / "run")
    weights = {key: x.clone() for key, x in stopped.policy.state_dict().items()}
    before = learn(stopped, 320, StopIn(4, 2))
    checkpoint = save_checkpoint(stopped, tmp_path)
    torch.manual_seed(77)
    resumed = build(tmp_path / "run")
    load_checkpoint(resumed, checkpoint)
    after = learn(resumed, 320, resumed=True)
    assert json.dumps(before + after, default=float) == json.dumps(whole, default=float)
    assert any("train/actor_loss" in row for row in after)
    assert all(torch.equal(x, weights[key]) for key, x in resumed.policy.state_dict().items())
    actors = [model.sac.actor.state_dict() for model in (stopped, resumed)]
    assert not all(torch.equal(x, actors[0][key]) for key, x in actors[1].items())


def test_a_saved_folder_plays_the_actors_mean(tmp_path: Path) -> None:
    model = build(bound=1.5, repeat=False)
    learn(model, 100)
    policy, obs = model.policy, model.env.reset()
    with torch.no_grad():
        seen = SeenByFlow.of(policy, obs)
        expected = seen.chunks(policy, 1.5 * model.sac.actor(seen.feature_BE, deterministic=True))
    policy.save_trained(tmp_path / "policy")
    again = VLAPolicy.from_pretrained(tmp_path / "policy", device="cpu")
    assert again.action_selection_text(deterministic=True) == "flow noise chosen in [-1.5, 1.5]"
    noise = SlotNoise(1, (2, 3), np.arange(4))
    np.testing.assert_allclose(again.predict_with_noise(obs, noise, deterministic=True), expected, atol=1e-6)


def test_a_policy_that_draws_tokens_is_refused() -> None:
    envs = vla_gym.make_vec("Toy-Reach", num_envs=1, chunk=4)
    with pytest.raises(BadValue, match="'nano', which draws tokens"):
        DSRL("VLAPolicy", envs, device="cpu", policy_kwargs={"backbone": "nano", "backbone_kwargs": {"size": "tiny"}})
