"""RECAP: returns, lookahead and signs by hand; the prompt and its guidance; runs that go on bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import CallbackList

import vla_gym
from tests.zoo.off_policy.test_qc import NANO, learn
from tests.zoo.off_policy.test_replay import FIRST, LAST, demonstration, replay_of
from tests.zoo.training.test_checkpoint import StopIn
from vla_gym.observation import decode_instruction, encode_instruction
from vla_policies import VLAPolicy
from vla_policies.actions.noise import SlotNoise
from vla_policies.steering import NEGATIVE, POSITIVE, Conditioned, ConditionedConfig, with_suffix
from zoo.off_policy.recap import RECAP, ahead_of, positive, returns
from zoo.training.checkpoint import load_checkpoint, save_checkpoint


def test_returns_count_the_steps_to_success_and_failures_are_minus_one() -> None:
    replay = replay_of(FIRST, LAST, FIRST)
    replay.add_demonstrations([demonstration(5, solved=True), demonstration(4, solved=False)])
    rows, return_F = returns(replay, 10)
    marks = replay.columns["obs.state"][rows, 0].tolist()
    # The first episode was solved in its fifth step, the second was cut off; the third pair is not over.
    assert marks == [1, 11, 2, 12, 0, 1, 2, 3, 4, 0, 1, 2, 3]
    expected = [-0.5, -1, -0.2, -1, -0.5, -0.4, -0.3, -0.2, -0.1, -1, -1, -1, -1]
    np.testing.assert_allclose(return_F, expected, rtol=1e-6)


def test_the_lookahead_goes_from_decision_to_decision_until_the_end() -> None:
    replay = replay_of(FIRST, LAST)
    rows = replay.rows()
    states = replay.columns["obs.state"][:, 0]
    assert states[rows].tolist() == [1, 11, 2, 12]
    ahead, over = ahead_of(replay, rows, 3)
    assert states[ahead].tolist() == [2, 12, 2, 12]
    assert over.tolist() == [False, False, True, True]
    ahead, over = ahead_of(replay, rows, 4)
    assert over.all()


def test_a_share_of_each_tasks_decisions_is_positive_and_demonstrations_are() -> None:
    advantage = np.array([0.1, 0.2, 0.3, 0.4, -5, -6, -7, -8, -9])
    sentence = np.stack([encode_instruction("a")] * 4 + [encode_instruction("b")] * 5)
    taught = np.array([False] * 8 + [True])
    found = positive(advantage, sentence, taught, 0.5)
    assert found.tolist() == [False, False, True, True, True, True, False, False, True]


def test_suffixes_follow_their_sentences() -> None:
    both = torch.from_numpy(np.stack([encode_instruction("reach the red block"), encode_instruction("open")]))
    shown = [decode_instruction(row) for row in with_suffix(both, [POSITIVE, ""]).numpy()]
    assert shown == ["reach the red block. Advantage: positive", "open"]


def build(folder: Path | None = None, **settings: Any) -> RECAP:
    envs = vla_gym.make_vec("Toy-Reach", num_envs=4, chunk=4, seed=5)
    small = {"n_steps": 5, "batch_size": 16, "updates": 3, "value_updates": 2, "lookahead": 4}
    policy = settings.pop("policy", NANO)
    model = RECAP("VLAPolicy", envs, seed=3, device="cpu", policy_kwargs=policy, **{**small, **settings})
    model.replay_folder = folder
    return model


@pytest.mark.parametrize("settings", [{"guidance": 2.0}, {"indicator": "filter", "label": "success"}])
def test_a_resumed_run_repeats_the_uninterrupted_one(settings: dict[str, Any], tmp_path: Path) -> None:
    whole = learn(build(tmp_path / "whole", **settings), 320)
    stopped = build(tmp_path / "run", **settings)
    before = learn(stopped, 320, StopIn(4, 2))
    checkpoint = save_checkpoint(stopped, tmp_path)
    torch.manual_seed(77)
    resumed = build(tmp_path / "run", **settings)
    load_checkpoint(resumed, checkpoint)
    after = learn(resumed, 320, resumed=True)
    assert json.dumps(before + after, default=float) == json.dumps(whole, default=float)
    assert any("train/actor/imitation_loss" in row for row in before)


@pytest.mark.parametrize("family", ["nano", "nano-flow"])
def test_guidance_of_one_is_the_suffix_and_of_nought_the_bare_sentence(family: str, tmp_path: Path) -> None:
    model = build(policy={"backbone": family, "backbone_kwargs": {"size": "tiny"}})
    learn(model, 80)
    policy, obs = model.policy, model.env.reset()

    def act(guidance: float | None, sentence: dict[str, Any]) -> np.ndarray:
        policy.steer(None if guidance is None else Conditioned(ConditionedConfig(guidance=guidance)))
        return policy.predict_with_noise(sentence, SlotNoise(1, (2, 3), np.arange(4)), deterministic=True)

    shown = torch.from_numpy(obs["instruction"])
    signs = {sign: {**obs, "instruction": with_suffix(shown, sign).numpy()} for sign in (POSITIVE, NEGATIVE)}
    np.testing.assert_allclose(act(1.0, obs), act(None, signs[POSITIVE]), atol=1e-6)
    np.testing.assert_allclose(act(0.0, obs), act(None, obs), atol=1e-5)
    assert not np.array_equal(act(None, signs[POSITIVE]), act(None, signs[NEGATIVE]))
    act(3.0, obs)
    policy.save_trained(tmp_path / "policy")
    again = VLAPolicy.from_pretrained(tmp_path / "policy", device="cpu")
    assert again.action_selection_text(deterministic=True) == "'Advantage: positive' with guidance 3"
    noise = SlotNoise(1, (2, 3), np.arange(4))
    np.testing.assert_allclose(again.predict_with_noise(obs, noise, deterministic=True), act(3.0, obs), atol=1e-6)


def test_nothing_is_learned_before_anything_was_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vla_gym.adapters.toy.TOUCH", 0.001)  # which chance hardly ever reaches
    model = build()
    weights = {key: x.clone() for key, x in model.policy.state_dict().items()}
    model.learn(100, CallbackList([]))
    assert all(torch.equal(x, weights[key]) for key, x in model.policy.state_dict().items())
    assert model.policy.steering is None
