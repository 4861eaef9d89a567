"""Actor and rollout side of a placement in one process: orders, weights and columns over boxes instead of a network."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.logger import Logger
from torch import Tensor

from vla_gym import BadValue, VLAVectorEnv, make_vec
from vla_gym.make import sub_env_setup
from vla_gym.specs import Benchmark
from vla_gym.vector.protocol import EnvConfig
from vla_gym.workers.pool import AbsentPool, Pool
from zoo import PPO
from zoo.distributed.placement import parse_placement
from zoo.distributed.weight_sync import WeightSender, trained, weights_hash
from zoo.training.remote_rollouts import Delivery
from zoo.training.rollout_worker import Collector

ACTOR, ROLLOUT = 0, 1
PLACEMENT = parse_placement("env=1,rollout=1,actor=0", 2)
Boxes = defaultdict[tuple[int, int], "queue.Queue[Any]"]


class BoxMail:
    """As `zoo.distributed.channel.Mail`, for one of two ends of boxes in memory."""

    def __init__(self, me: int, boxes: Boxes) -> None:
        self._me = me
        self._boxes = boxes
        self.sent: list[Any] = []

    def send(self, rank: int, note: Any, tensors: Mapping[str, Tensor] | None = None) -> None:
        self.sent.append(note)
        copies = {key: one.clone() for key, one in (tensors or {}).items()}
        self._boxes[self._me, rank].put((note, copies))

    def receive(self, rank: int) -> Any:
        return self._boxes[rank, self._me].get(timeout=60)

    def wait(self) -> None:
        """Boxes take everything at once."""


def absent(benchmark: Benchmark, config: EnvConfig) -> Pool:
    return AbsentPool(sub_env_setup(benchmark, config).memory)


def ppo(envs: VLAVectorEnv) -> PPO:
    policy: dict[str, Any] = {"backbone": "nano", "backbone_kwargs": {"size": "tiny"}}
    return PPO("VLAPolicy", envs, n_steps=4, batch_size=16, n_epochs=1, seed=3, policy_kwargs=policy)


class Pair:
    """A learner and the collector that works for it in a thread."""

    def __init__(self, max_staleness: int) -> None:
        boxes: Boxes = defaultdict(queue.Queue)
        self.orders = BoxMail(ACTOR, boxes)
        self.failures: list[Exception] = []
        self.learner = ppo(make_vec("Toy-Reach", 4, chunk=4, seed=1, pool=absent))
        self.model = ppo(make_vec("Toy-Reach", 4, chunk=4, seed=1))
        mail: Any = BoxMail(ROLLOUT, boxes)
        self.collector = Collector(self.model, PLACEMENT, ROLLOUT, mail, 4)
        ours: Any = self.orders
        self.delivery = Delivery(PLACEMENT, ACTOR, ours, 4, max_staleness=max_staleness)
        experience: Any = self.learner.experience
        experience.delivery = self.delivery
        self.learner.set_logger(Logger(folder=None, output_formats=[]))
        self.thread = threading.Thread(target=self._serve, args=(max_staleness,))
        self.thread.start()

    def gather(self) -> bool:
        """One rollout, as `learn` has it."""
        self.learner.chunk_buffer.reset()
        self.learner.news.begin()
        callback = CallbackList([])
        callback.init_callback(self.learner)
        return self.delivery.gather(self.learner, callback)

    def move(self) -> None:
        """What an update does, as far as the others notice."""
        with torch.no_grad():
            for one in self.learner.policy.parameters():
                one.add_(0.001)
        self.learner._updates_done += 1

    def end(self) -> None:
        self.delivery.close()
        self.thread.join(timeout=60)
        assert not self.thread.is_alive()

    def _serve(self, max_staleness: int) -> None:
        try:
            self.collector.serve(max_staleness)
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
    assert pair.gather()
    theirs, ours = pair.model.chunk_buffer.collected(), pair.learner.chunk_buffer.collected()
    assert ours.keys() == theirs.keys()
    for name, one in ours.items():
        assert torch.equal(one, theirs[name]), name
    assert torch.equal(pair.delivery.last_value_N, pair.model.experience.last_values(pair.model))
    assert pair.learner.news.own() == pair.model.news.own()
    assert pair.delivery.version_N.tolist() == [0, 0, 0, 0]


def test_new_weights_travel_before_the_next_rollout(pairs: Any):
    pair = pairs()
    pair.gather()
    pair.move()
    pair.gather()
    assert pair.collector.version == 1
    assert pair.delivery.version_N.tolist() == [1, 1, 1, 1]
    ours, theirs = pair.learner.policy.state_dict(), pair.model.policy.state_dict()
    assert all(torch.equal(one, theirs[name]) for name, one in ours.items())


def test_rollouts_are_ordered_as_far_ahead_as_staleness_allows(pairs: Any):
    pair = pairs(max_staleness=2)
    seen = []
    for _ in range(4):
        pair.gather()
        seen.append(int(pair.delivery.version_N[0]))
        pair.move()
    # Rollouts 0, 1, 2 are ordered at once with the first weights, then one with each new version.
    assert seen == [0, 0, 0, 1]
    orders = [(note["rollout"], note["version"]) for note in pair.orders.sent]
    assert orders == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2), (5, 3)]


def test_weights_that_differ_end_the_collector(pairs: Any):
    pair = pairs()
    pair.gather()
    with torch.no_grad():
        next(pair.model.policy.parameters()).add_(1.0)
    # Nothing changed since the last order, so nothing is sent that could hide the difference.
    digest = weights_hash(trained(pair.learner.policy))
    pair.orders.send(ROLLOUT, {"stop": False, "rollout": 0, "version": 0, "digest": digest}, {})
    pair.thread.join(timeout=60)
    assert [type(error) for error in pair.failures] == [BadValue]


def test_a_collector_passes_orders_on_as_they_came():
    placement = parse_placement("env=1-4,rollout=1-4,actor=0", 5)
    boxes: Boxes = defaultdict(queue.Queue)
    model = ppo(make_vec("Toy-Reach", 1, chunk=4, seed=1))
    mail: Any = BoxMail(1, boxes)
    update = WeightSender(model.policy).update(7)
    order = {"stop": False, "rollout": 7, "version": 7, "digest": update.digest}
    boxes[0, 1].put((order, dict(update.tensors)))
    boxes[0, 1].put(({"stop": True}, {}))
    Collector(model, placement, 1, mail, 4).serve(0)
    for below in (3, 4):
        note, tensors = boxes[1, below].get_nowait()
        assert note == order
        assert weights_hash(tensors) == weights_hash(update.tensors)
        assert boxes[1, below].get_nowait() == ({"stop": True}, {})
    note, tensors = boxes[1, 0].get_nowait()
    assert (note["version"], note["slots"]) == (7, [0, 1])
    assert tensors["reward_TN"].shape == (4, 1)
