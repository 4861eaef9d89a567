"""Actor and rollout side of a placement in one process: requests, weights and columns over queues in memory."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from vla_gym import VLAVectorEnv, make_vec
from vla_gym.make import sub_env_setup
from vla_gym.specs import Benchmark
from vla_gym.vector.protocol import EnvConfig
from vla_gym.workers.pool import AbsentPool, Pool
from zoo import PPO
from zoo.distributed.placement import parse_placement
from zoo.distributed.weight_sync import trained
from zoo.rollout.collector import RolloutStart
from zoo.rollout.stats import RolloutStats
from zoo.training.remote_rollouts import Exchange, RemoteRollouts, RolloutWorker

ACTOR, ROLLOUT = 0, 1
PLACEMENT = parse_placement("env=1,rollout=1,actor=0", 2)
Queues = defaultdict[tuple[int, int], "queue.Queue[Any]"]


class QueueChannel:
    """As `zoo.distributed.weight_sync.Channel`, for one of two ends of queues in memory."""

    def __init__(self, rank: int, queues: Queues) -> None:
        self._rank = rank
        self._queues = queues
        self.sent: list[Any] = []

    def send(self, rank: int, metadata: Any, payload: Mapping[str, Tensor] | None = None) -> None:
        self.sent.append(metadata)
        copies = {key: tensor.clone() for key, tensor in (payload or {}).items()}
        self._queues[self._rank, rank].put((metadata, copies))

    def receive(self, rank: int) -> Any:
        return self._queues[rank, self._rank].get(timeout=60)

    def wait(self) -> None:
        """Queues take everything at once."""


class QueueWeights:
    """As `zoo.distributed.weight_sync.WeightSync`, through a queue in memory."""

    def __init__(self, module: torch.nn.Module, line: queue.Queue[dict[str, Tensor]]) -> None:
        self._module = module
        self._line = line

    def send(self) -> int:
        copies = {name: tensor.clone() for name, tensor in trained(self._module).items()}
        self._line.put(copies)
        return sum(tensor.nbytes for tensor in copies.values())

    def receive(self) -> None:
        for name, tensor in self._line.get(timeout=60).items():
            trained(self._module)[name].copy_(tensor)

    def wait(self) -> None:
        """Queues take everything at once."""


def absent(benchmark: Benchmark, config: EnvConfig) -> Pool:
    return AbsentPool(sub_env_setup(benchmark, config).memory)


def ppo(envs: VLAVectorEnv, **settings: Any) -> PPO:
    policy: dict[str, Any] = {"backbone": "nano", "backbone_kwargs": {"size": "tiny"}}
    return PPO("VLAPolicy", envs, n_steps=4, batch_size=16, n_epochs=1, seed=3, policy_kwargs=policy, **settings)


class Pair:
    """A learner and the collector that works for it in a thread."""

    def __init__(self, max_staleness: int, **settings: Any) -> None:
        queues: Queues = defaultdict(queue.Queue)
        self.updates = 0
        self.channel = QueueChannel(ACTOR, queues)
        self.learner = ppo(make_vec("Toy-Reach", 4, chunk=4, seed=1, pool=absent), **settings)
        self.model = ppo(make_vec("Toy-Reach", 4, chunk=4, seed=1), **settings)
        line: queue.Queue[dict[str, Tensor]] = queue.Queue()
        worker_channel: Any = QueueChannel(ROLLOUT, queues)
        weights: list[Any] = [QueueWeights(model.policy, line) for model in (self.learner, self.model)]
        channel: Any = self.channel
        ends = [
            Exchange(placement=PLACEMENT, rank=rank, num_envs=4, channel=channels, weights=sync)
            for rank, channels, sync in zip((ACTOR, ROLLOUT), (channel, worker_channel), weights, strict=True)
        ]
        self.worker = RolloutWorker(self.model.collector(), ends[1])
        self.source = RemoteRollouts(self.learner, ends[0], own=None, max_staleness=max_staleness)
        self.thread = threading.Thread(target=self.worker.serve)
        self.thread.start()

    def collect(self) -> RolloutStats:
        """One rollout, as `learn` has it."""
        self.learner.chunk_buffer.reset()
        stats = self.source.collect(RolloutStart(self.updates, 0, {}), lambda step: True)
        assert stats is not None
        return stats

    def move(self) -> None:
        """Change the weights and count an update."""
        with torch.no_grad():
            for parameter in self.learner.policy.parameters():
                parameter.add_(0.001)
        self.updates += 1

    def end(self) -> None:
        self.source.close()
        self.thread.join(timeout=60)
        assert not self.thread.is_alive()


@pytest.fixture
def pairs() -> Iterator[Any]:
    made: list[Pair] = []

    def make(max_staleness: int = 0, **settings: Any) -> Pair:
        made.append(Pair(max_staleness, **settings))
        return made[-1]

    yield make
    for pair in made:
        pair.end()


def test_the_learner_has_what_the_collector_collected(pairs: Any):
    pair = pairs()
    stats = pair.collect()
    collected, received = pair.model.chunk_buffer.collected(), pair.learner.chunk_buffer.collected()
    assert received.keys() == collected.keys()
    for name, tensor in received.items():
        assert torch.equal(tensor, collected[name]), name
    assert torch.equal(stats.last_value_N, pair.worker.collector.results()["last_value_N"])
    assert pair.source.recorder.own() == pair.worker.collector.recorder.own()
    assert stats.num_timesteps == collected["executed_TN"].sum()
    assert stats.metrics["rollout/staleness"] == 0


def test_new_weights_travel_before_the_next_rollout(pairs: Any):
    pair = pairs()
    pair.collect()
    pair.move()
    pair.collect()
    assert pair.worker.version == 1
    assert pair.source.version_N.tolist() == [1, 1, 1, 1]
    sent, received = pair.learner.policy.state_dict(), pair.model.policy.state_dict()
    assert all(torch.equal(tensor, received[name]) for name, tensor in sent.items())


def test_the_learner_says_which_start_states_are_drawn(pairs: Any):
    pair = pairs(start_sampling="learnability")
    # All but the last start state seem hopeless.
    pair.learner.start_sampler._uniform = 0.0
    pair.learner.start_sampler.restore({"episodes": [1e12] * 150, "successes": [0.0] * 149 + [5e11]})
    pair.collect()
    present = pair.model.env.unwrapped.envs.state_dict()["slots"]
    assert {(episode["task_id"], episode["trial_id"]) for episode in present} == {(2, 49)}
    assert pair.channel.sent[0]["start_weights"][-1] == pytest.approx(1)


def test_rollouts_are_requested_as_far_ahead_as_staleness_allows(pairs: Any):
    pair = pairs(max_staleness=2)
    seen = []
    for _ in range(4):
        pair.collect()
        seen.append(int(pair.source.version_N[0]))
        pair.move()
    # Rollouts 0, 1, 2 are requested at once with the first weights, then one with each new version.
    assert seen == [0, 0, 0, 1]
    requests = [(request["rollouts"], request["version"]) for request in pair.channel.sent]
    assert requests == [([0, 1, 2], 0), ([3], 1), ([4], 2), ([5], 3)]
