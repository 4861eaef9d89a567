"""A rollout by hand: a scripted environment, a policy whose value is a tenth of the picture."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.zoo.stand_ins import ACTION, OBSERVATION, ScriptedVecEnv, StandInPolicy
from vla_gym.errors import BadValue
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.buffer import ChunkRolloutBuffer
from zoo.rollout.collector import CollectorConfig, RolloutCollector, first_env, is_chunk_policy
from zoo.rollout.types import RolloutStart, Step

SCRIPTS = [
    [(1.0, 3, "on"), (2.0, 2, "terminated")],
    [(0.0, 3, "on"), (0.0, 3, "truncated")],
    [(0.0, 3, "on"), (0.0, 1, "lost")],
]


def make(**settings: Any) -> RolloutCollector:
    policy = StandInPolicy(OBSERVATION, ACTION, lambda _: 0.0)
    env = ScriptedVecEnv(SCRIPTS)
    buffer = ChunkRolloutBuffer(3, OBSERVATION, ACTION, n_envs=3)
    config = CollectorConfig(num_decisions=3, **settings)
    collector = RolloutCollector(env, policy, buffer, ProcessGroup(), seed=0, config=config)
    collector.obs = env.reset()
    return collector


def start(collector: RolloutCollector) -> RolloutStart:
    return RolloutStart(number=0, num_timesteps=100, obs=collector.obs)


def test_three_decisions_of_three_environments() -> None:
    collector = make()
    steps: list[Step | None] = []
    stats = collector.collect(start(collector), lambda step: steps.append(step) is None)
    assert stats is not None
    assert len(steps) == 3
    buffer = collector.buffer
    assert buffer.reward_TN.tolist() == [[1, 0, 0], [2, 0, 0], [1, 0, 0]]
    assert buffer.executed_TN.tolist() == [[3, 3, 3], [2, 3, 1], [3, 3, 3]]
    # An episode begins at picture 0 and is at 10 after a decision; a value is a tenth of it.
    assert buffer.value_TN.tolist() == [[0, 0, 0], [1, 1, 1], [0, 0, 0]]
    # Cut off by time or lost with its simulator: worth the value 2 of the picture 20 it ended in.
    assert buffer.terminated_TN.tolist() == [[False] * 3, [True, False, False], [False] * 3]
    assert buffer.truncated_TN.tolist() == [[False] * 3, [False, True, True], [False] * 3]
    assert buffer.final_value_TN[1].tolist() == [0, 2, 2]
    # 9 + 6 + 9 simulator steps.
    assert (stats.num_timesteps, stats.num_sim_steps, stats.num_decisions) == (124, 24, 9)
    assert stats.num_lost == 1
    assert [episode.success for episode in stats.episodes][:2] == [True, False]
    assert stats.last_value_N is not None
    assert stats.last_value_N.tolist() == [1, 1, 1]
    assert stats.done_N is not None
    assert not stats.done_N.any()


def test_a_time_limit_may_be_an_end_like_any_other_but_a_lost_episode_has_not_failed() -> None:
    collector = make(bootstrap_time_limit=False)
    assert collector.collect(start(collector), lambda step: True) is not None
    assert collector.buffer.terminated_TN[1].tolist() == [True, True, False]
    assert collector.buffer.final_value_TN[1].tolist() == [0, 0, 2]


def test_a_callback_ends_a_rollout_and_the_environments_stay_where_they_are() -> None:
    collector = make()
    numbers = iter([True, False])
    assert collector.collect(start(collector), lambda step: next(numbers)) is None
    assert collector.obs["image"][:, 0, 0, 0].tolist() == [0, 0, 0]
    assert collector.collect(start(collector), lambda step: True) is not None


def test_rewards_of_steps_must_be_given_where_they_are_asked_for() -> None:
    collector = make(reward_level="action")
    with pytest.raises(BadValue, match="needs each step's reward"):
        collector.collect(start(collector), lambda step: True)


def test_environments_are_counted_over_all_ranks() -> None:
    assert first_env(ScriptedVecEnv(SCRIPTS), ProcessGroup(rank=2, size=4)) == 6


def test_a_chunk_policy_is_told_by_its_methods() -> None:
    assert is_chunk_policy(StandInPolicy)
    assert not is_chunk_policy(torch.nn.Module)
