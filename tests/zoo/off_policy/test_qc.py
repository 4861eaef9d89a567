"""Q-chunking: what its critics learn, a frozen policy steered, runs that go on bit for bit, and a gain on the toy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import Logger

import vla_gym
from tests.zoo.stand_ins import Rows
from tests.zoo.training.test_checkpoint import StopIn
from vla_gym.specs import ActionSpec, Benchmark, Task
from vla_policies import VLAPolicy
from vla_policies.actions.noise import SlotNoise
from zoo.off_policy.qc import QC
from zoo.training.checkpoint import load_checkpoint, save_checkpoint

NANO = {"backbone": "nano", "backbone_kwargs": {"size": "tiny"}}
SMALL = {"learning_starts": 16, "batch_size": 16, "n_steps": 3, "num_samples": 4, "updates_per_decision": 0.25}


def build(policy: dict[str, Any], *, num_envs: int = 4, folder: Path | None = None, **settings: Any) -> QC:
    env = settings.pop("env", "Toy-Reach")
    envs = vla_gym.make_vec(env, num_envs=num_envs, chunk=settings.pop("chunk", 4), seed=5)
    model = QC("VLAPolicy", envs, seed=3, device="cpu", policy_kwargs=policy, **{**SMALL, **settings})
    model.replay_folder = folder
    return model


def learn(model: QC, total: int, *callbacks: BaseCallback, resumed: bool = False) -> list[dict[str, Any]]:
    rows = Rows()
    model.set_logger(Logger(None, [rows]))
    steps = total - model.num_timesteps if resumed else total
    model.learn(steps, CallbackList(list(callbacks)), reset_num_timesteps=not resumed)
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows.rows]


@pytest.mark.parametrize("imitate", ["better_half", "none"])
def test_a_resumed_run_repeats_the_uninterrupted_one(imitate: str, tmp_path: Path) -> None:
    whole = learn(build(NANO, folder=tmp_path / "whole", imitate=imitate), 240)
    stopped = build(NANO, folder=tmp_path / "run", imitate=imitate)
    before = learn(stopped, 240, StopIn(4, 2))
    assert len(before) == 3
    checkpoint = save_checkpoint(stopped, tmp_path)
    torch.manual_seed(77)
    np.random.seed(77)
    resumed = build(NANO, folder=tmp_path / "run", imitate=imitate)
    load_checkpoint(resumed, checkpoint)
    after = learn(resumed, 240, resumed=True)
    assert json.dumps(before + after, default=float) == json.dumps(whole, default=float)
    assert any("train/critic/td_loss" in row for row in after)


def seven_numbers() -> Benchmark:
    """An arm of seven numbers, whose episodes end after ten steps; no simulator."""
    tasks = (Task(name="script", instruction="go", horizon=1000, num_trials=1, suite="scripted"),)
    return Benchmark(
        id="Scripted",
        tasks=tasks,
        action_dim=7,
        action_spec=ActionSpec(rotation="axis_angle", gripper="plus_one_closes", frame="delta"),
        state_dim=0,
        cameras=("image",),
        default_image_size=8,
        control_hz=10.0,
        simulator="tests.zoo.stand_ins:ScriptedSimulator",
        simulator_kwargs={"scripts": [[(0, 3, "on"), (0, 3, "on"), (0, 3, "on"), (1, 1, "terminated")]]},
        in_process=True,
    )


@pytest.mark.parametrize("name", ["pi0_tiny", "openvla_oft_tiny"])
def test_a_frozen_policy_is_steered(name: str, golden_root: Path) -> None:
    policy: dict[str, Any] = {"backbone": golden_root / name}
    where: dict[str, Any] = {"chunk": 4}
    if name == "openvla_oft_tiny":
        policy["unnorm_key"] = "libero_spatial_no_noops"
        where = {"chunk": 8, "env": seven_numbers()}
    model = build(policy, num_envs=2, imitate="none", learning_starts=4, batch_size=4, **where)
    weights = {key: x.clone() for key, x in model.policy.state_dict().items()}
    critic = {key: x.clone() for key, x in model.critic.state_dict().items()}
    learn(model, 50)
    assert all(torch.equal(x, weights[key]) for key, x in model.policy.state_dict().items())
    changed = [key for key, x in model.critic.state_dict().items() if not torch.equal(x, critic[key])]
    assert any(key.startswith("layers.") for key in changed)
    assert any(key.startswith("vision.") for key in changed)


def test_the_chunk_that_the_critics_prefer_is_played_also_from_a_saved_folder(tmp_path: Path) -> None:
    model = build(NANO)
    learn(model, 60)
    policy, critic = model.policy, model.critic
    obs = model.env.reset()
    num = SMALL["num_samples"]
    slots = np.arange(4)
    inputs = policy.prepare(obs)
    action_NBKA = policy.backbone.candidates(inputs, policy.sampling, int(num), SlotNoise(1, (2, 3), slots))
    estimate_NB = torch.stack([critic(obs, one).mean(dim=0) for one in action_NBKA])
    played = policy.predict_with_noise(obs, SlotNoise(1, (2, 3), slots))
    expected = action_NBKA[estimate_NB.argmax(dim=0), torch.arange(4)]
    np.testing.assert_array_equal(played, expected.numpy())
    assert len({one.numpy().tobytes() for one in action_NBKA}) == num  # samples, not copies of one
    policy.save_trained(tmp_path / "policy")
    again = VLAPolicy.from_pretrained(tmp_path / "policy", device="cpu")
    assert again.action_selection_text(deterministic=True) == "best of 4 chunks by 2 critics"
    np.testing.assert_array_equal(again.predict_with_noise(obs, SlotNoise(1, (2, 3), slots)), played)


def test_targets_follow_the_critics_by_tau() -> None:
    model = build(NANO, tau=0.25, learning_starts=10**6)
    learn(model, 60)
    assert model.replay is not None
    before = [x.clone() for x in model.target.parameters()]
    model.update_critic(model.draw(model.replay))
    for old, new, critic in zip(before, model.target.parameters(), model.critic.parameters(), strict=True):
        torch.testing.assert_close(new, 0.75 * old + 0.25 * critic)


@pytest.mark.thorough
def test_it_learns_the_toy_in_a_tenth_of_ppos_steps(tmp_path: Path) -> None:
    from zoo.train import run

    flags = ["--algo", "qc", "--env", "Toy-Reach", "-n", "12000", "--seed", "0", "--device", "cpu"]
    assert run([*flags, "-f", str(tmp_path), "--eval-freq", "0"]) == 0
    found = json.loads((tmp_path / "qc/Toy-Reach_1/evaluation.json").read_text())
    assert found["success"]["success"] > 0.7
