"""Credit by decision and by step: worked out by hand, and equal where the two must agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import Logger
from torch import Tensor

import vla_gym
from tests.zoo.algorithms.test_ppo import SCRIPTS
from tests.zoo.stand_ins import CHUNK, DIMS, Rows, ScriptedVecEnv, StandInPolicy
from vla_gym.errors import BadValue, UnknownName
from zoo import PPO
from zoo.algorithms.advantages import gae, step_gae


def ends(num_decisions: int, num_envs: int, **at: list[tuple[int, int]]) -> dict[str, Tensor]:
    """`terminated_TN` and `truncated_TN`, True at the given (decision, env)."""
    flags = {
        name: torch.zeros(num_decisions, num_envs, dtype=torch.bool) for name in ("terminated", "truncated")
    }
    for name, places in at.items():
        for place in places:
            flags[name][place] = True
    return {f"{name}_TN": flag for name, flag in flags.items()}


# One slot: two steps paying 1 and 2 with values 3 and 4, then one step paying 5 with value 6 that ends it.
REWARD = torch.tensor([[[1.0, 2.0]], [[5.0, 0.0]]])
EXECUTED = torch.tensor([[2], [1]])
REST = {
    "executed_TN": EXECUTED,
    "final_value_TN": torch.zeros(2, 1),
    "last_value_N": torch.tensor([100.0]),
    "gamma": 0.5,
    "gae_lambda": 0.5,
    **ends(2, 1, terminated=[(1, 0)]),
}


def test_each_executed_step_is_a_row_of_its_own():
    value_TNK = torch.tensor([[[3.0, 4.0]], [[6.0, 9.0]]])
    # Last: 5 - 6 = -1. Before: 2 + 6 / 2 - 4 = 1, and 1 - 1 / 4. First: 1 + 4 / 2 - 3 = 0, and 0.75 / 4.
    assert step_gae(REWARD, value_TNK, **REST).tolist() == [[[0.1875, 0.75]], [[-1.0, 0.0]]]


def test_one_value_for_a_chunk_leaves_the_rewards_from_each_step_on():
    value_TNK = torch.tensor([[[3.0, 3.0]], [[6.0, 6.0]]])
    # Step 1: 2 + 6 / 2 - 3, and a quarter of -1. Step 0: 1 + 2 / 2 + 6 / 4 - 3, and an eighth of -1.
    advantage = step_gae(REWARD, value_TNK, **REST, lambda_inside=1.0)
    assert advantage.tolist() == [[[0.375, 1.75]], [[-1.0, 0.0]]]


def test_a_truncated_step_bootstraps_and_a_lost_chunk_ends_the_sum():
    rest = {"last_value_N": torch.tensor([100.0]), "gamma": 0.5, "gae_lambda": 1.0}
    truncated = step_gae(
        torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[2.0, 0.0]]]), executed_TN=torch.tensor([[1]]),
        final_value_TN=torch.tensor([[4.0]]), **rest, **ends(1, 1, truncated=[(0, 0)]),
    )  # fmt: skip
    assert truncated.tolist() == [[[1.0, 0.0]]]
    lost = step_gae(
        torch.tensor([[[1.0, 0.0]], [[0.0, 0.0]]]), torch.tensor([[[2.0, 0.0]], [[8.0, 0.0]]]),
        executed_TN=torch.tensor([[1], [0]]), final_value_TN=torch.zeros(2, 1), **rest,
        **ends(2, 1, truncated=[(1, 0)]),
    )  # fmt: skip
    # 1 + 8 / 2 - 2, and nothing of what was never run.
    assert lost.tolist() == [[[3.0, 0.0]], [[0.0, 0.0]]]


def random_rollout(num_decisions: int, num_envs: int, chunk: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    terminated = draw(num_decisions, num_envs) < 0.2
    return {
        "reward_TNK": draw(num_decisions, num_envs, chunk),
        "value_TNK": draw(num_decisions, num_envs, chunk),
        "terminated_TN": terminated,
        "truncated_TN": (draw(num_decisions, num_envs) < 0.2) & ~terminated,
        "final_value_TN": draw(num_decisions, num_envs),
        "last_value_N": draw(num_envs),
    }


def chunk_level(rollout: dict[str, Tensor], reward_TN: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    rest = {name: one for name, one in rollout.items() if name not in ("reward_TNK", "value_TNK")}
    return gae(reward_TN, rollout["value_TNK"][..., 0], gamma=gamma, gae_lambda=gae_lambda, **rest)


def test_chunks_of_one_step_are_credited_alike():
    rollout = random_rollout(6, 3, chunk=1)
    fine = step_gae(**rollout, executed_TN=torch.ones(6, 3, dtype=torch.int64), gamma=0.9, gae_lambda=0.8)
    torch.testing.assert_close(fine[..., 0], chunk_level(rollout, rollout["reward_TNK"][..., 0], 0.9, 0.8))


def test_one_executed_step_of_many_is_credited_alike():
    rollout = random_rollout(6, 3, chunk=4)
    fine = step_gae(**rollout, executed_TN=torch.ones(6, 3, dtype=torch.int64), gamma=0.9, gae_lambda=0.8)
    torch.testing.assert_close(fine[..., 0], chunk_level(rollout, rollout["reward_TNK"][..., 0], 0.9, 0.8))
    assert (fine[..., 1:] == 0).all()


@pytest.mark.parametrize("lambda_inside", [None, 1.0])
def test_undiscounted_the_first_step_gets_what_its_chunk_gets(lambda_inside: float | None):
    """gamma = lambda = 1: both are the sum of all rewards to come, less the value."""
    rollout = random_rollout(6, 3, chunk=4)
    executed_TN = torch.randint(1, 5, (6, 3), generator=torch.Generator().manual_seed(2))
    ran_TNK = torch.arange(4) < executed_TN[..., None]
    rollout["reward_TNK"] = rollout["reward_TNK"] * ran_TNK
    fine = step_gae(
        **rollout, executed_TN=executed_TN, gamma=1.0, gae_lambda=1.0, lambda_inside=lambda_inside
    )
    torch.testing.assert_close(fine[..., 0], chunk_level(rollout, rollout["reward_TNK"].sum(-1), 1.0, 1.0))
    assert (fine[~ran_TNK] == 0).all()


class PaysAtTheEnd(ScriptedVecEnv):
    """The last executed step of a chunk gets all its reward."""

    def step_wait(self) -> Any:
        obs, rewards, dones, infos = super().step_wait()
        for reward, info in zip(rewards, infos, strict=True):
            info["step_rewards"] = np.zeros(CHUNK, dtype=np.float32)
            info["step_rewards"][info["executed"] - 1] = reward
        return obs, rewards, dones, infos


def scripted(env: type[ScriptedVecEnv] = PaysAtTheEnd, **kwargs: Any) -> PPO:
    settings = {
        "n_steps": 3, "batch_size": 6, "n_epochs": 1, "gamma": 0.5, "gae_lambda": 1.0, "learning_rate": 0.01,
        "device": "cpu", "seed": 0, "normalize_advantage": False, "reward_level": "action", **kwargs,
    }  # fmt: skip
    model = PPO(StandInPolicy, env(SCRIPTS), **settings)
    model.set_logger(Logger(None, [Rows()]))
    return model


def test_steps_of_a_scripted_rollout_by_hand():
    model = scripted()
    model.learn(1)
    buffer = model.chunk_buffer
    # Slot 1 is paid 2 in its eighth step; each step before is worth half, less the chunk's value 0, 1, 2.
    expected = [[2**-6, 2**-5, 2**-4], [2**-3 - 1, 2**-2 - 1, 2**-1 - 1], [1 - 2, 2 - 2, 0]]
    assert buffer.step_advantage_TNK[:, 1].tolist() == expected
    assert buffer.return_TN[:, 1].tolist() == [2**-6, 2**-3, 1]


def test_tokens_share_the_advantage_of_their_step():
    model = scripted(logprob_level="token")
    model.learn(1)
    batch = next(iter(next(iter(model.experience.minibatches(model))))).batch
    by_step = batch.advantage_BL.unflatten(1, (CHUNK, DIMS))
    assert (by_step == by_step[..., :1]).all()
    assert sorted(by_step[..., 0].flatten().tolist()) == sorted(
        model.chunk_buffer.step_advantage_TNK.flatten().tolist()
    )


def test_the_loss_takes_each_steps_own_advantage():
    model = scripted(logprob_level="action")
    model.learn(1)
    # Ratio 1: the loss is minus the mean advantage of the 15 executed steps.
    mean = model.chunk_buffer.step_advantage_TNK.sum().item() / 15
    row = model.logger.output_formats[0].rows[-1]
    assert row["train/actor/policy_loss"] == pytest.approx(-mean)


def test_step_advantages_are_normalised_over_executed_steps():
    model = scripted(normalize_advantage=True)
    model.learn(1)
    executed = model.chunk_buffer.step_advantage_TNK[model.chunk_buffer.executed_steps()]
    assert len(executed) == 15
    assert executed.mean().item() == pytest.approx(0, abs=1e-6)
    assert executed.std().item() == pytest.approx(1, abs=1e-5)


def test_rewards_of_steps_must_be_told():
    with pytest.raises(BadValue, match="step_rewards"):
        scripted(ScriptedVecEnv).learn(1)


@pytest.mark.parametrize(
    ("kwargs", "error", "match"),
    [
        ({"reward_level": "step"}, UnknownName, "action"),
        ({"value_level": "token"}, UnknownName, "action"),
        ({"reward_level": "chunk", "value_level": "action"}, BadValue, "reward_level='action' too"),
        ({"logprob_level": "chunk"}, BadValue, "one ratio"),
    ],
)
def test_levels_that_do_not_go_together_are_refused(kwargs: dict[str, Any], error: type, match: str):
    with pytest.raises(error, match=match):
        scripted(**kwargs)


def test_plain_policies_have_no_levels():
    with pytest.raises(BadValue, match="reward_level"):
        PPO("MlpPolicy", "CartPole-v1", reward_level="action", device="cpu")


def oft(outputs: int, **kwargs: Any) -> PPO:
    envs = vla_gym.make_vec("Toy-Reach", num_envs=2, chunk=4, seed=0)
    options = {"size": "tiny", "value_outputs": outputs}
    model = PPO(
        "VLAPolicy", envs, n_steps=3, batch_size=6, n_epochs=1, seed=0, device="cpu", learning_rate=1e-3,
        policy_kwargs={"backbone": "openvla-oft", "backbone_kwargs": options},
        **{"reward_level": "action", "value_level": "action", **kwargs},
    )  # fmt: skip
    model.set_logger(Logger(None, [Rows()]))
    return model


@pytest.mark.filterwarnings("ignore::zoo.algorithms.training_warnings.TrainingWarning")
def test_openvla_oft_values_every_step():
    model = oft(4)
    before = model.policy.backbone.value_head.mlp[4].weight.detach().clone()
    model.learn(1)
    buffer = model.chunk_buffer
    assert buffer.step_value_TNK.shape == (3, 2, 4)
    assert torch.equal(buffer.step_value_TNK[..., 0], buffer.value_TN)
    # Every output has learnt: the targets are those of its own step.
    assert ((model.policy.backbone.value_head.mlp[4].weight - before).abs().amax(dim=1) > 0).all()
    batch = next(iter(next(iter(model.experience.minibatches(model))))).batch
    assert batch.return_BU.shape == (6, 4)
    assert batch.value_weight_BU.sum().item() == pytest.approx(6)
    assert model.logger.output_formats[0].rows[-1]["train/actor/ratio_first_gap"] == pytest.approx(
        0, abs=1e-5
    )


def test_one_output_cannot_value_every_step():
    with pytest.raises(BadValue, match="value_outputs"):
        oft(1)


def test_a_number_of_outputs_between_is_refused():
    with pytest.raises(BadValue, match="value_outputs must be 1, or 4"):
        oft(3)
