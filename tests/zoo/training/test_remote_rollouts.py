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

from vla_gym import BadValue, VLAVectorEnv, make_vec
from vla_gym.make import sub_env_setup
from vla_gym.specs import Benchmark
from vla_gym.vector.protocol import EnvConfig
from vla_gym.workers.pool import AbsentPool, Pool
from zoo import PPO
from zoo.distributed.placement import parse_placement
from zoo.distributed.weight_sync import WeightSender, trained, weights_hash
from zoo.rollout.stats import RolloutStats
from zoo.rollout.types import RolloutStart
from zoo.training.remote_rollouts import RemoteRollouts
from zoo.training.rollout_worker import RolloutWorker

ACTOR, ROLLOUT = 0, 1
PLACEMENT = parse_placement("env=1,rollout=1,actor=0", 2)
Queues = defaultdict[tuple[int, int], "queue.Queue[Any]"]


class QueueChannel:
    """As `zoo.distributed.channel.Channel`, for one of two ends of queues in memory."""

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


def absent(benchmark: Benchmark, config: EnvConfig) -> Pool:
    return AbsentPool(sub_env_setup(benchmark, config).memory)


def ppo(envs: VLAVectorEnv) -> PPO:
    policy: dict[str, Any] = {"backbone": "nano", "backbone_kwargs": {"size": "tiny"}}
    return PPO("VLAPolicy", envs, n_steps=4, batch_size=16, n_epochs=1, seed=3, policy_kwargs=policy)


class Pair:
    """A learner and the collector that works for it in a thread."""

    def __init__(self, max_staleness: int) -> None:
        queues: Queues = defaultdict(queue.Queue)
        self.updates = 0
        self.channel = QueueChannel(ACTOR, queues)
        self.failures: list[Exception] = []
        self.learner = ppo(make_vec("Toy-Reach", 4, chunk=4, seed=1, pool=absent))
        self.model = ppo(make_vec("Toy-Reach", 4, chunk=4, seed=1))
        worker_channel: Any = QueueChannel(ROLLOUT, queues)
        self.worker = RolloutWorker(self.model, PLACEMENT, ROLLOUT, worker_channel, 4)
        channel: Any = self.channel
        self.source = RemoteRollouts(self.learner, PLACEMENT, ACTOR, channel, 4, max_staleness=max_staleness)
        self.thread = threading.Thread(target=self._serve, args=(max_staleness,))
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

    def _serve(self, max_staleness: int) -> None:
        try:
            self.worker.serve(max_staleness)
        except Exception as error:  # noqa: BLE001  looked at by the test
            self.failures.append(error)


@pytest.fixture
def pairs() -> Iterator[Any]:
    made: list[Pair] = []

    def make(max_staleness: int = 0) -> Pair:
        made.append(Pair(max_staleness))
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


def test_rollouts_are_requested_as_far_ahead_as_staleness_allows(pairs: Any):
    pair = pairs(max_staleness=2)
    seen = []
    for _ in range(4):
        pair.collect()
        seen.append(int(pair.source.version_N[0]))
        pair.move()
    # Rollouts 0, 1, 2 are requested at once with the first weights, then one with each new version.
    assert seen == [0, 0, 0, 1]
    requests = [(request["rollout"], request["version"]) for request in pair.channel.sent]
    assert requests == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2), (5, 3)]


def test_weights_that_differ_end_the_worker(pairs: Any):
    pair = pairs()
    pair.collect()
    with torch.no_grad():
        next(pair.model.policy.parameters()).add_(1.0)
    # Nothing changed since the last request, so nothing is sent that could hide the difference.
    digest = weights_hash(trained(pair.learner.policy))
    pair.channel.send(ROLLOUT, {"stop": False, "rollout": 0, "version": 0, "digest": digest}, {})
    pair.thread.join(timeout=60)
    assert [type(error) for error in pair.failures] == [BadValue]


def test_a_worker_passes_requests_on_as_they_came():
    placement = parse_placement("env=1-4,rollout=1-4,actor=0", 5)
    queues: Queues = defaultdict(queue.Queue)
    model = ppo(make_vec("Toy-Reach", 1, chunk=4, seed=1))
    channel: Any = QueueChannel(1, queues)
    update = WeightSender(model.policy).update(7)
    request = {"stop": False, "rollout": 7, "version": 7, "digest": update.digest}
    queues[0, 1].put((request, dict(update.tensors)))
    queues[0, 1].put(({"stop": True}, {}))
    RolloutWorker(model, placement, 1, channel, 4).serve(0)
    for below in (3, 4):
        metadata, tensors = queues[1, below].get_nowait()
        assert metadata == request
        assert weights_hash(tensors) == weights_hash(update.tensors)
        assert queues[1, below].get_nowait() == ({"stop": True}, {})
    metadata, tensors = queues[1, 0].get_nowait()
    assert (metadata["version"], metadata["envs"]) == (7, [0, 1])
    assert tensors["reward_TN"].shape == (4, 1)
