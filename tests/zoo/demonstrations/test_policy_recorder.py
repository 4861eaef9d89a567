"""A policy's episodes as demonstrations: advantages by hand, log-probabilities against the policy's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from vla_gym import make_vec
from vla_gym.specs import StartState
from vla_gym.vector.vector_env import VLAVectorEnv
from vla_policies import VLAPolicy
from zoo.demonstrations.policy_recorder import ADVANTAGE, CHUNK_STEP, LOGPROB, VALUE, episode_advantages, roll_out
from zoo.demonstrations.recorder import DONE, REWARD, SUCCESS, Attempt

K = 4
RULES: dict[str, Any] = {"deterministic": False, "seed": 3, "gamma": 0.5, "gae_lambda": 0.5}


@pytest.fixture(scope="module")
def envs() -> Iterator[VLAVectorEnv]:
    made = make_vec("Toy-Reach", 3, chunk=1, autoreset_mode="disabled", num_workers=0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def policy(envs: VLAVectorEnv) -> VLAPolicy:
    torch.manual_seed(0)
    return VLAPolicy.from_pretrained(
        "nano",
        backbone_kwargs={"size": "tiny"},
        observation_space=envs.as_sb3().observation_space,
        action_space=spaces.Box(-1.0, 1.0, (K, envs.benchmark.action_dim)),
        device="cpu",
    )


def attempts(*trials: int) -> list[Attempt]:
    return [(StartState(task_id=0, trial_id=trial), 0) for trial in trials]


def test_advantages_of_one_episode_by_hand() -> None:
    # Two decisions of two steps: rewards 1 + 2 and 4, values 10 and 20, cut off by time at a value of 8.
    # delta_1 = 4 + 0.5 * 8 - 20 = -12; delta_0 = 3 + 0.5 * 20 - 10 = 3; A_0 = 3 + 0.25 * -12 = 0.
    advantage_T = episode_advantages(
        {
            REWARD: np.array([1.0, 2.0, 4.0], np.float32),
            VALUE: np.array([10.0, 10.0, 20.0], np.float32),
            CHUNK_STEP: np.array([0, 1, 0]),
        },
        8.0,
        0.5,
        0.5,
    )
    np.testing.assert_allclose(advantage_T, [0.0, 0.0, -12.0])
    assert advantage_T.dtype == np.float32


def test_what_is_recorded_is_what_the_policy_says_of_it(envs: VLAVectorEnv, policy: VLAPolicy) -> None:
    (one,) = roll_out(envs, policy, attempts(0), 0, **RULES)
    assert one.extra[CHUNK_STEP].tolist() == [step % K for step in range(one.length)]
    assert one.extra[DONE].tolist() == [False] * (one.length - 1) + [True]
    assert one.extra[SUCCESS].dtype == bool
    assert one.success == bool(one.extra[SUCCESS].any())
    obs = {"image": one.images["image"][:1], "instruction": (one.instruction,)}
    if one.state_TS.shape[1]:
        obs["state"] = one.state_TS[:1]
    with torch.no_grad():
        values, logprobs, _ = policy.evaluate_actions(
            policy.obs_to_tensor(obs)[0], torch.from_numpy(one.action_TA[None, :K])
        )
    assert one.extra[LOGPROB].shape == one.action_TA.shape
    assert one.extra[LOGPROB][:K].sum() == pytest.approx(float(logprobs), abs=1e-4)
    np.testing.assert_allclose(one.extra[VALUE][:K], float(values), atol=1e-5)


def test_an_episode_cut_off_by_time_is_worth_something_after_its_end(
    envs: VLAVectorEnv, policy: VLAPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "predict_values", lambda obs: torch.tensor([[7.0]]))
    episodes = roll_out(envs, policy, attempts(0, 1, 2), 0, **RULES)
    horizon = envs.benchmark.tasks[0].horizon
    assert {one.length == horizon for one in episodes} == {True, False}
    for one in episodes:
        last = one.extra[CHUNK_STEP][-1] + 1
        reward = one.extra[REWARD][-last:].sum()
        after = 0.5 * 7.0 if one.length == horizon else 0.0
        assert one.extra[ADVANTAGE][-1] == pytest.approx(reward + after - one.extra[VALUE][-1], abs=1e-5)


def test_an_episode_depends_on_its_attempts_number_not_on_its_company(envs: VLAVectorEnv, policy: VLAPolicy) -> None:
    _, second, third = roll_out(envs, policy, attempts(0, 1, 2), 10, **RULES)
    (alone,) = roll_out(envs, policy, attempts(2), 12, **RULES)
    np.testing.assert_array_equal(alone.action_TA, third.action_TA)
    (elsewhere,) = roll_out(envs, policy, attempts(1), 99, **RULES)
    assert not np.array_equal(elsewhere.action_TA, second.action_TA)
