"""Rollouts of a split placement: ranks that decide collect them (`RolloutWorker`), ranks that learn receive them
(`RemoteRollouts`).

The first actor rank requests rollouts and sends the weights to collect them; each actor rank gets its shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.distributed.placement import Placement, block, overlap
from zoo.distributed.weight_sync import Channel, WeightSync
from zoo.rollout.buffer import Observation
from zoo.rollout.collector import OnStep, RolloutCollector, RolloutStart
from zoo.rollout.minibatches import columns_of
from zoo.rollout.stats import GroupStats, RolloutRecorder, RolloutStats

_BY_COLUMN = ("last_value_N", "lost_N", "solved_N")
"""Tensors of a shard that are not the buffer's, by column of it."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The means by which a rank exchanges rollouts and weights with others."""

    placement: Placement
    rank: int
    """Number of this process."""
    num_envs: int
    """N, sub-environments of the run."""
    channel: Channel
    weights: WeightSync | None
    """Takes weights from the first actor rank to those that decide with them; None where this rank does neither."""

    def decided(self, rank: int) -> range:
        """Return the sub-environments (of all N) that a rank decides for."""
        return block(self.placement.rollout.index(rank), len(self.placement.rollout), self.num_envs)

    def learned(self, rank: int) -> range:
        """Return the sub-environments (of all N) that an actor rank learns from."""
        return block(self.placement.actor.index(rank), len(self.placement.actor), self.num_envs)

    def shared(self, sender: int, actor: int) -> range:
        """Return the sub-environments that `sender` decides for and `actor` learns from; may be empty."""
        return overlap(self.decided(sender), self.learned(actor))


@dataclass(frozen=True)
class RolloutRequest:
    """Message of the first actor rank to a rank that decides; weights of `version` follow it."""

    rollouts: list[int]
    """Numbers of the rollouts to collect; none: the run has ended, and no weights follow."""
    version: int = 0
    """Updates that the weights have gone through."""
    start_weights: list[float] | None = None
    """Weights of the coming start states, task-major; None = uniform."""


@dataclass(frozen=True)
class Shard:
    """Message to an actor rank: its columns of a rollout, whose tensors go with it (the buffer's, and `_BY_COLUMN`)."""

    envs: tuple[int, int]
    """First sub-environment (of all N), and the one after the last."""
    version: int
    """Of the weights that decided."""
    own: dict[str, Any] | None
    """The sender's numbers of the whole rollout; in its first shard alone."""
    resampled: tuple[int, int] = (0, 0)
    """The sender's groups that were replaced, and rounds collected for that; likewise."""


class RolloutWorker:
    """Collects rollouts with `collector`, in this rank's share of the sub-environments."""

    def __init__(self, collector: RolloutCollector, exchange: Exchange) -> None:
        self.collector = collector
        self.version = -1
        """Updates that the present weights have gone through; -1 before the first request."""
        self._exchange = exchange
        self._held = exchange.decided(exchange.rank)

    def serve(self) -> None:
        """Answer the first actor rank's requests until it stops."""
        channel, weights, first = self._exchange.channel, self._exchange.weights, self._exchange.placement.actor[0]
        while (request := RolloutRequest(**channel.receive(first)[0])).rollouts:
            assert weights is not None, "this rank learns: it receives no weights"
            weights.receive()
            self.begin(request.version, request.start_weights)
            for rollout in request.rollouts:
                self.collect(rollout)
                self.send()
        channel.wait()

    def begin(self, version: int, start_weights: Sequence[float] | None) -> None:
        """Take note of new weights, and of how the coming start states are drawn."""
        self.version = version
        self.collector.env.envs.set_start_weights(None if start_weights is None else np.array(start_weights))

    def collect(self, rollout: int) -> None:
        """Collect rollout number `rollout` of the run into the collector's buffer."""
        collector, fresh = self.collector, not self.collector.obs
        if fresh:
            if rollout:
                # A resumed run draws other start states than at its beginning.
                collector.env.seed(collector.seed + rollout)
            collector.obs = collector.env.reset()
        collector.policy.set_training_mode(False)
        collector.buffer.reset()
        start = RolloutStart(number=rollout, num_timesteps=0, obs=collector.obs, at_episode_start=fresh)
        finished = collector.fill(start, lambda step: True)
        assert finished, "nothing here stops a rollout"

    def send(self) -> None:
        """Send their shards to the other ranks that learn."""
        exchange = self._exchange
        for actor in exchange.placement.actor:
            if actor != exchange.rank and exchange.shared(exchange.rank, actor):
                shard, tensors = self.shard(actor)
                exchange.channel.send(actor, vars(shard), tensors)

    def shard(self, actor: int) -> tuple[Shard, dict[str, Tensor]]:
        """Return what an actor rank gets of the rollout."""
        collector, envs = self.collector, self._exchange.shared(self._exchange.rank, actor)
        columns = columns_of(envs, self._held, collector.buffer.columns // len(self._held))
        tensors = {name: tensor[:, columns] for name, tensor in collector.buffer.collected().items()}
        results, resampled, is_first = collector.results(), (0, 0), envs.start == self._held.start
        if (groups := results.get("groups")) is not None:
            tensors |= {"lost_N": groups.lost_N[columns], "solved_N": groups.solved_N[columns]}
            resampled = (groups.num_resampled, groups.extra_rounds) if is_first else (0, 0)
        else:
            tensors["last_value_N"] = results["last_value_N"][columns]
        own = collector.recorder.own() if is_first else None
        return Shard((envs.start, envs.stop), self.version, own, resampled), tensors


class RemoteRollouts:
    """A `RolloutSource` for one actor rank; `own` is the worker of this process, where the rank decides too.

    With `max_staleness` k > 0 rollout n is requested with the weights of version n - k, k updates ahead.
    """

    def __init__(
        self, model: VLAOnPolicyAlgorithm, exchange: Exchange, *, own: RolloutWorker | None, max_staleness: int
    ) -> None:
        self.obs: Observation = {}
        self.version_N = np.zeros(0, dtype=np.int64)
        """Version of the weights that collected each of this rank's sub-environments."""
        self.recorder = RolloutRecorder()
        self.off_policy = max_staleness > 0
        self._model = model
        self._exchange = exchange
        self._own = own
        self._max_staleness = max_staleness
        self._envs = exchange.learned(exchange.rank)
        self._senders = [rank for rank in exchange.placement.rollout if exchange.shared(rank, exchange.rank)]
        self._requested = self._received = 0

    def collect(self, start: RolloutStart, on_step: OnStep) -> RolloutStats | None:
        """See `RolloutSource.collect`."""
        self.obs = start.obs
        process_group = self._model.process_group
        with self._model.clock.phase("sync_weights"):
            sent = self._request(start.number)
        with self._model.clock.phase("waiting"):
            by_column, resampled = self._receive()
        self._received = start.number + 1
        if process_group.any(not on_step(None)):
            return None
        groups = None
        if "solved_N" in by_column:
            groups = GroupStats(by_column["lost_N"], by_column["solved_N"], *resampled)
        oldest = float(self.version_N.min())
        metrics = {"rollout/policy_version": oldest, "rollout/staleness": start.number - oldest}
        if self._exchange.weights is not None:
            metrics["placement/weights_mb"] = sent / 1e6
        stats = self.recorder.finish(process_group, start.num_timesteps)
        return replace(stats, last_value_N=by_column.get("last_value_N"), groups=groups, metrics=metrics)

    def close(self) -> None:
        """Stop the rollout ranks; rollouts collected ahead are dropped."""
        exchange, channel = self._exchange, self._exchange.channel
        for _ in range(self._received, self._requested):
            for rank in self._senders:
                if rank != exchange.rank:
                    channel.receive(rank)
        if exchange.weights is not None:
            for rank in exchange.placement.weights_to:
                channel.send(rank, vars(RolloutRequest([])))
            exchange.weights.wait()
        channel.wait()

    def _request(self, version: int) -> int:
        """Send the weights of `version` with requests for the rollouts that may be collected with them.

        Return their bytes. A rank that decides itself then collects.
        """
        exchange, sampler = self._exchange, self._model.start_sampler
        rollouts = range(max(self._requested, version), version + self._max_staleness + 1)
        self._requested = rollouts.stop
        probability_P = None if sampler is None else sampler.probabilities().tolist()
        sent = 0
        if exchange.weights is not None:
            request = vars(RolloutRequest(list(rollouts), version, probability_P))
            for rank in exchange.placement.weights_to:
                exchange.channel.send(rank, request)
            sent = exchange.weights.send()
        if self._own is not None:
            self._own.begin(version, probability_P)
            self._own.collect(version)
        return sent

    def _receive(self) -> tuple[dict[str, Tensor], tuple[int, int]]:
        """Write the shards of the next rollout to the buffer; return `_BY_COLUMN`, and `resampled` of all shards."""
        buffer = self._model.chunk_buffer
        by_column: dict[str, Tensor] = {}
        resampled, extra_rounds = 0, 0
        self.recorder.begin()
        self.version_N = np.zeros(len(self._envs), dtype=np.int64)
        for shard, tensors in self._shards():
            envs = range(*shard.envs)
            self.version_N[envs.start - self._envs.start : envs.stop - self._envs.start] = shard.version
            columns = columns_of(envs, self._envs, buffer.columns // len(self._envs))
            for name in _BY_COLUMN:
                if (part := tensors.pop(name, None)) is not None:
                    by_column.setdefault(name, torch.zeros(buffer.columns, dtype=part.dtype))[columns] = part
            buffer.write_columns(columns, tensors)
            if shard.own is not None:
                self.recorder.merge(shard.own)
            resampled, extra_rounds = resampled + shard.resampled[0], extra_rounds + shard.resampled[1]
        return by_column, (resampled, extra_rounds)

    def _shards(self) -> Iterator[tuple[Shard, dict[str, Tensor]]]:
        exchange = self._exchange
        if self._own is not None:
            self._own.send()  # before waiting for other ranks, which may wait for this rank's shards
            if exchange.rank in self._senders:
                yield self._own.shard(exchange.rank)
        for rank in self._senders:
            if rank != exchange.rank:
                message, tensors = exchange.channel.receive(rank)
                yield Shard(**message), tensors
