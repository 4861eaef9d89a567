"""The collector alone: scripted episodes, a policy whose values are a tenth of the picture, no algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from tests.zoo.stand_ins import CHUNK, DIMS, StandInPolicy, scripted_envs
from vla_policies.actions.noise import TORCH_NOISE, Noise
from vla_policies.types import ActionSample
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.buffer import ChunkRolloutBuffer, Step
from zoo.rollout.collector import CollectorConfig, RolloutCollector, RolloutStart

# Sub-environment 0 is cut off by time after two decisions, 1 solves its task in three.
CUT_OFF = [(0.0, 3, "on"), (1.0, 1, "truncated")]
SOLVED = [(0.0, 3, "on"), (0.0, 3, "on"), (2.0, 2, "terminated")]
LOST = [(0.0, 3, "on"), (0.0, 0, "lost")]


class NoisyPolicy(StandInPolicy):
    """Keeps a number of each decision's noise."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.drawn: list[list[float]] = []

    def act(self, obs: Mapping[str, Any], deterministic: bool = False, noise: Noise = TORCH_NOISE) -> ActionSample:
        self.drawn.append(noise.uniform(len(obs["image"]), device=torch.device("cpu")).tolist())
        return super().act(obs, deterministic, noise)


def collector(*scripts: Any, rank: int = 0, **config: Any) -> Any:
    env: Any = scripted_envs(list(scripts)).as_sb3()
    object.__setattr__(env.envs.config, "group_offset", rank * len(scripts))
    buffer = ChunkRolloutBuffer(3, env.observation_space, env.action_space, n_envs=len(scripts))
    policy = NoisyPolicy(env.observation_space, env.action_space, lambda _: 0.1)
    config = CollectorConfig(num_decisions=3, **config)
    return RolloutCollector(env, policy, buffer, ProcessGroup(rank), 5, config)


def start(made: Any, number: int = 0, num_timesteps: int = 0) -> RolloutStart:
    return RolloutStart(number, num_timesteps, made.env.reset())


def go_on(step: Step | None) -> bool:
    return True


def test_the_decisions_land_in_the_buffer():
    made = collector(CUT_OFF, SOLVED)
    stats = made.collect(start(made), go_on)
    buffer = made.buffer
    assert buffer.obs["image"][:, :, 0, 0, 0].tolist() == [[0, 0], [10, 10], [0, 20]]
    assert buffer.logprob_TNKA.shape == (3, 2, CHUNK, DIMS)
    # Four bins, each as likely.
    torch.testing.assert_close(buffer.logprob_TNKA, torch.full((3, 2, CHUNK, DIMS), 0.25).log())
    assert buffer.reward_TN.tolist() == [[0, 0], [1, 0], [0, 2]]
    assert buffer.executed_TN.tolist() == [[3, 3], [1, 3], [3, 2]]
    assert buffer.value_TN.tolist() == [[0, 0], [1, 1], [0, 2]]
    # After the last decision sub-environment 0 shows picture 10, sub-environment 1 a new episode.
    assert stats.last_value_N.tolist() == [1, 0]
    assert stats.done_N.tolist() == [False, True]
    assert made.obs["image"][:, 0, 0, 0].tolist() == [10, 0]


def test_steps_and_episodes_are_counted():
    made = collector(CUT_OFF, SOLVED)
    stats = made.collect(start(made, num_timesteps=100), go_on)
    assert (stats.num_decisions, stats.num_sim_steps, stats.num_timesteps) == (6, 15, 115)
    # 3 + 3 and 1 + 3 simulator steps until the second decision is done.
    assert [episode.num_timesteps for episode in stats.episodes] == [110, 115]
    assert [episode.info["r"] for episode in stats.episodes] == [1, 2]


@pytest.mark.filterwarnings("ignore::vla_gym.errors.WorkerRestarted")
def test_a_time_limit_may_be_an_end_but_a_lost_episode_never_is():
    made = collector(CUT_OFF, LOST, bootstrap_time_limit=False)
    stats = made.collect(start(made), go_on)
    assert made.buffer.terminated_TN[1].tolist() == [True, False]
    assert made.buffer.truncated_TN[1].tolist() == [False, True]
    assert stats.num_lost == 1
    # A decision of which nothing was run is not counted.
    assert stats.num_decisions == 5
    assert len(stats.episodes) == 1


def test_a_rollout_that_is_stopped_leaves_the_present_observation():
    made, calls = collector(CUT_OFF, SOLVED), []

    def stop_at_the_second(step: Step) -> bool:
        calls.append(step)
        return len(calls) < 2

    assert made.collect(start(made), stop_at_the_second) is None
    assert made.buffer.executed_TN.tolist() == [[3, 3], [0, 0], [0, 0]]
    # The third decision, which was under way, is done: 0 is in its second episode, 1 has begun anew.
    assert made.obs["image"][:, 0, 0, 0].tolist() == [10, 0]


def test_noise_follows_from_place_and_rollout_alone():
    together = collector(SOLVED, SOLVED, SOLVED, SOLVED)
    together.collect(start(together, number=0), go_on)
    alone = [collector(SOLVED, SOLVED, rank=rank) for rank in range(2)]
    for made in alone:
        made.collect(start(made, number=0), go_on)
    first = together.policy.drawn
    assert [low + high for low, high in zip(*(made.policy.drawn for made in alone), strict=True)] == first
    assert len({number for numbers in first for number in numbers}) == 12
    together.policy.drawn = []
    together.collect(start(together, number=1), go_on)
    together.collect(start(together, number=0), go_on)
    assert together.policy.drawn[:3] != first
    assert together.policy.drawn[3:] == first
