"""A flow policy with pi0's head learns Toy-Reach from nothing, whichever way its actions get a probability."""

import numpy as np
import pytest
import torch

import vla_gym
from zoo import PPO

CHUNK, EPISODES = 4, 150


def success(model: PPO, *, deterministic: bool) -> float:
    """Share of `EPISODES` episodes solved from start states that training never saw."""
    envs = vla_gym.make_vec("Toy-Reach", num_envs=16, chunk=CHUNK, seed=99, split="test").as_sb3()
    obs, solved = envs.reset(), []
    while len(solved) < EPISODES:
        actions, _ = model.predict(obs, deterministic=deterministic)
        obs, _, _, infos = envs.step(actions)
        solved += [bool(info["episode"]["success_once"]) for info in infos if "episode" in info]
    envs.close()
    return float(np.mean(solved))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "steps"),
    [
        # One random step of four teaches less per decision than four do.
        pytest.param({"scheme": "flow_sde"}, 28_000, marks=pytest.mark.thorough),
        pytest.param(
            {"scheme": "flow_noise", "noise_std": [0.15, 0.4], "joint": "mean"}, 15_000, marks=pytest.mark.thorough
        ),
    ],
    ids=["flow_sde", "flow_noise"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_ppo_teaches_a_flow_policy(scheme: dict, steps: int) -> None:
    torch.set_num_threads(1)
    envs = vla_gym.make_vec("Toy-Reach", num_envs=16, chunk=CHUNK, seed=1)
    model = PPO(
        "VLAPolicy",
        envs,
        learning_rate=5e-4,
        n_steps=16,
        batch_size=64,
        n_epochs=4,
        logprob_level="chunk",
        policy_kwargs={"backbone": "nano-flow", "backbone_kwargs": {"size": "tiny", **scheme}},
        seed=1,
    )
    before = success(model, deterministic=False)
    model.learn(steps)
    assert success(model, deterministic=True) > before + 0.25
    envs.close()
