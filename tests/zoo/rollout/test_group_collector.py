"""Groups by hand: a policy that stands still fails every episode of Toy-Reach at its limit of 12 steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.zoo.stand_ins import CHUNK, StandInPolicy
from vla_gym import VLAVectorEnv, make_vec
from vla_gym.errors import BadValue
from vla_policies.actions.noise import TORCH_NOISE, Noise
from vla_policies.types import ActionSample
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.buffer import ChunkRolloutBuffer
from zoo.rollout.collector import CollectorConfig, GroupCollector, RolloutStart, check_shared_start

NUM_DECISIONS = 12 // CHUNK


class StandingStill(StandInPolicy):
    def act(self, obs: Mapping[str, Any], deterministic: bool = False, noise: Noise = TORCH_NOISE) -> ActionSample:
        sample = super().act(obs, deterministic, noise)
        still_BKA = torch.zeros_like(sample.action_BKA)
        return ActionSample(still_BKA, sample.logprob_BKA, sample.value_B, sample.record)


@pytest.fixture
def envs() -> Iterator[VLAVectorEnv]:
    """Two groups of two."""
    envs = make_vec("Toy-Reach", num_envs=4, chunk=CHUNK, group_size=2, seed=3)
    yield envs
    envs.close()


Signal = Callable[[ChunkRolloutBuffer, Tensor], Tensor]


def collector(envs: VLAVectorEnv, rounds: int = 1, extra: int = 0, signal: Signal | None = None) -> Any:
    env: Any = envs.as_sb3()
    buffer = ChunkRolloutBuffer(NUM_DECISIONS, env.observation_space, env.action_space, n_envs=4, rollouts=rounds)
    policy = StandingStill(env.observation_space, env.action_space, lambda _: 0.1)
    config = CollectorConfig(num_decisions=NUM_DECISIONS, num_rounds=rounds)
    signal = signal or (lambda buffer, lost_N: torch.ones(2 * rounds, dtype=torch.bool))
    groups = {"group_size": 2, "max_extra_rounds": extra, "has_signal": signal}
    return GroupCollector(env, policy, buffer, ProcessGroup(), 5, config, **groups)


def start(made: Any) -> RolloutStart:
    return RolloutStart(0, 0, made.env.reset(), at_episode_start=True)


def test_a_round_fills_its_columns_with_one_episode_each(envs: VLAVectorEnv):
    made = collector(envs, rounds=2)
    stats = made.collect(start(made), lambda step: True)
    buffer, groups = made.buffer, stats.groups
    assert (buffer.executed_TN == CHUNK).all()
    assert buffer.executed_TN.shape == (NUM_DECISIONS, 8)
    assert stats.num_sim_steps == 8 * 12
    # The time limit is an end like any other, and no value follows.
    assert buffer.terminated_TN.tolist() == [[False] * 8] * 3 + [[True] * 8]
    assert not buffer.truncated_TN.any()
    assert stats.last_value_N is None
    assert groups.solved_N.tolist() == [False] * 8
    first = buffer.obs["image"][0]
    for column in (0, 2, 4, 6):
        assert torch.equal(first[column], first[column + 1])
    assert not torch.equal(first[0], first[4])
    assert (groups.num_resampled, groups.extra_rounds, groups.lost_N.tolist()) == (0, 0, [False] * 8)


def test_the_first_round_takes_episodes_that_have_just_begun(envs: VLAVectorEnv):
    made = collector(envs)
    begun = start(made)
    made.collect(begun, lambda step: True)
    assert np.array_equal(made.buffer.obs["image"][0].numpy(), begun.obs["image"])
    # Without that a round resets, which draws other start states.
    anew = RolloutStart(1, 0, made.obs)
    made.collect(anew, lambda step: True)
    assert not np.array_equal(made.buffer.obs["image"][0].numpy(), begun.obs["image"])


def test_a_group_with_signal_of_a_further_round_replaces_one_without(envs: VLAVectorEnv):
    answers = iter([[False, True], [False, True], [True, True]])
    pictures = []

    def signal(buffer: ChunkRolloutBuffer, lost_N: Tensor) -> Tensor:
        pictures.append(buffer.obs["image"][0].clone())
        return torch.tensor(next(answers))

    made = collector(envs, extra=3, signal=signal)
    stats = made.collect(start(made), lambda step: True)
    first, spare, after = pictures
    assert torch.equal(after[:2], spare[2:])
    assert torch.equal(after[2:], first[2:])
    assert not torch.equal(first[:2], spare[2:])
    assert (stats.groups.num_resampled, stats.groups.extra_rounds) == (1, 1)
    # Both rounds were run.
    assert stats.num_sim_steps == 2 * 4 * 12


def test_groups_that_began_in_different_states_are_an_error():
    check_shared_start(["a", "a", "b", "b"], 2)
    said = r"group 1 \(sub-environments 2 .. 3\) began in 2 different states: b, c.* drawn from self.np_random"
    with pytest.raises(BadValue, match=said):
        check_shared_start(["a", "a", "b", "c"], 2)
