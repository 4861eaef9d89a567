"""Rollouts of a split placement: ranks that decide collect them (`RolloutWorker`), ranks that learn receive them
(`RemoteRollouts`).

The first actor rank requests rollouts and sends the weights to collect them; each actor rank gets its shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
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
from zoo.rollout.stats import GroupOutcome, GroupStats, RolloutRecorder, RolloutStats


class RolloutWorker:
    """Collects rollouts with `collector`, in this rank's share of `num_envs`."""

    def __init__(
        self,
        collector: RolloutCollector,
        placement: Placement,
        rank: int,
        channel: Channel,
        num_envs: int,
        *,
        weights: WeightSync | None,
    ) -> None:
        """`weights`: brings those of the first actor rank, where this rank does not learn."""
        self.policy = collector.policy
        self.collector = collector
        self.version = -1
        """Updates that the present weights have gone through; -1 before the first request."""
        self._placement = placement
        self._rank = rank
        self._channel = channel
        self._weights = weights
        self._num_envs = num_envs
        self.held = block(placement.rollout.index(rank), len(placement.rollout), num_envs)
        """Indices among all `num_envs` of the sub-environments that this rank collects."""

    def serve(self) -> None:
        """Answer the first actor rank's requests until it stops."""
        while not (request := self._channel.receive(self._placement.actor[0])[0])["stop"]:
            assert self._weights is not None, "this rank learns: it receives no weights"
            self._weights.receive()
            self.version = request["version"]
            self.weigh_starts(request["start_weights"])
            for rollout in request["rollouts"]:
                self.collect(rollout)
                for place, actor in enumerate(self._placement.actor):
                    if len(self._shard_envs(place)):
                        self._channel.send(actor, *self.shard(place))
        self._channel.wait()

    def weigh_starts(self, weights: Sequence[float] | None) -> None:
        """Draw the coming start states in proportion to `weights`, task-major; None = uniformly."""
        self.collector.env.envs.set_start_weights(None if weights is None else np.array(weights))

    def collect(self, rollout: int) -> None:
        """Collect rollout number `rollout` of the run into the collector's buffer."""
        collector, fresh = self.collector, not self.collector.obs
        if fresh:
            if rollout:
                # A resumed run draws other start states than at its beginning.
                collector.env.seed(collector.seed + rollout)
            collector.obs = collector.env.reset()
        self.policy.set_training_mode(False)
        collector.buffer.reset()
        start = RolloutStart(number=rollout, num_timesteps=0, obs=collector.obs, at_episode_start=fresh)
        finished = collector.fill(start, lambda step: True)
        assert finished, "nothing here stops a rollout"

    def shard(self, actor: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return metadata (JSON values) and payload of the rollout for the actor rank at place `actor`."""
        collector, envs = self.collector, self._shard_envs(actor)
        own = slice(envs.start - self.held.start, envs.stop - self.held.start)
        rounds = collector.buffer.columns // len(self.held)
        columns = columns_of(envs, self.held, rounds)
        payload = {name: tensor[:, columns] for name, tensor in collector.buffer.collected().items()}
        metadata: dict[str, Any] = {"version": self.version, "envs": [envs.start, envs.stop]}
        # Numbers of the whole rank are in its first shard only.
        is_first = own.start == 0
        if is_first:
            metadata["stats"] = collector.recorder.own()
        results = collector.results()
        if (groups := results.get("groups")) is not None:
            metadata["groups"] = self._groups(groups.outcomes, own, rounds)
            if is_first:
                metadata["resampled"] = [groups.num_resampled, groups.extra_rounds]
            payload["lost"] = groups.lost_N[columns]
        else:
            payload["last_value"] = results["last_value_N"][own]
        return metadata, payload

    def _shard_envs(self, actor: int) -> range:
        return overlap(self.held, block(actor, len(self._placement.actor), self._num_envs))

    def _groups(self, outcomes: list[GroupOutcome], own: slice, rounds: int) -> list[list[dict[str, Any]]]:
        """Outcomes of the groups of this rank's sub-environments `own`, by round."""
        per_round = len(outcomes) // rounds
        size = len(self.held) // per_round
        return [
            [asdict(group) for group in outcomes[first + own.start // size : first + own.stop // size]]
            for first in range(0, len(outcomes), per_round)
        ]


class RemoteRollouts:
    """A `RolloutSource` for one actor rank; `own` is the worker of this process, where the rank decides too.

    With `max_staleness` k > 0 rollout n is requested with the weights of version n - k, k updates ahead.
    """

    def __init__(
        self,
        model: VLAOnPolicyAlgorithm,
        placement: Placement,
        rank: int,
        channel: Channel,
        num_envs: int,
        *,
        weights: WeightSync | None,
        own: RolloutWorker | None,
        max_staleness: int,
    ) -> None:
        """`weights`: takes this rank's to ranks that decide with them; None on all actor ranks but the first."""
        self.obs: Observation = {}
        self.last_value_N: Tensor | None = None
        """Values after the last decision of this rank's sub-environments; None for groups."""
        self.version_N = np.zeros(0, dtype=np.int64)
        """Version of the weights that collected each of this rank's sub-environments."""
        self.recorder = RolloutRecorder()
        self._model = model
        self._placement = placement
        self._rank = rank
        self._channel = channel
        self._num_envs = num_envs
        self._weights = weights
        self._own = own
        self._max_staleness = max_staleness
        self.off_policy = max_staleness > 0
        self._place = placement.actor.index(rank)
        self._envs = block(self._place, len(placement.actor), num_envs)
        self._groups: GroupStats | None = None
        self._requested = self._received = 0

    def collect(self, start: RolloutStart, on_step: OnStep) -> RolloutStats | None:
        """See `RolloutSource.collect`."""
        self.obs = start.obs
        process_group = self._model.process_group
        weights_mb = self.receive(start.number)
        if process_group.any(not on_step(None)):
            return None
        stats = self.recorder.finish(process_group, start.num_timesteps)
        oldest = float(self.version_N.min())
        metrics = {"rollout/policy_version": oldest, "rollout/staleness": start.number - oldest}
        if self._weights is not None:
            metrics["placement/weights_mb"] = weights_mb
        return replace(stats, last_value_N=self.last_value_N, groups=self._groups, metrics=metrics)

    def receive(self, version: int) -> float:
        """Request the rollouts due with weights of `version`, and receive this rank's columns of the next one.

        Returns the megabytes of weights sent.
        """
        self.recorder.begin()
        with self._model.clock.phase("sync_weights"):
            weights_mb = self._request(version)
        with self._model.clock.phase("waiting"):
            self._receive_shards()
        self._received = version + 1
        return weights_mb

    def close(self) -> None:
        """Stop the rollout ranks; rollouts collected ahead are dropped."""
        for _ in range(self._received, self._requested):
            for rank in self._senders():
                self._channel.receive(rank)
        if self._weights is not None:
            for rank in self._placement.weights_to:
                self._channel.send(rank, {"stop": True})
            self._weights.wait()
        self._channel.wait()

    def _request(self, version: int) -> float:
        """Send the weights of `version` with requests for the rollouts that may be collected with them."""
        rollouts = range(max(self._requested, version), version + self._max_staleness + 1)
        self._requested = rollouts.stop
        sampler = self._model.start_sampler
        probability_P = None if sampler is None else sampler.probabilities().tolist()
        sent = 0
        if self._weights is not None:
            request = {"rollouts": list(rollouts), "version": version, "start_weights": probability_P}
            for rank in self._placement.weights_to:
                self._channel.send(rank, {"stop": False, **request})
            sent = self._weights.send()
        if self._own is not None:
            self._own.version = version
            self._own.weigh_starts(probability_P)
            self._own.collect(version)
        return sent / 1e6

    def _receive_shards(self) -> None:
        self.version_N = np.zeros(len(self._envs), dtype=np.int64)
        self.last_value_N = self._groups = None
        if self._own is not None:
            # Before waiting for other ranks, which may wait for this rank's shards.
            for place, actor in enumerate(self._placement.actor):
                if actor != self._rank and len(overlap(self._own.held, self._block(place))):
                    self._channel.send(actor, *self._own.shard(place))
            if len(overlap(self._own.held, self._envs)):
                self._write(*self._own.shard(self._place))
        for rank in self._senders():
            self._write(*self._channel.receive(rank))

    def _block(self, place: int) -> range:
        return block(place, len(self._placement.actor), self._num_envs)

    def _senders(self) -> list[int]:
        """Other ranks that collect sub-environments of this one."""
        count = len(self._placement.rollout)
        return [
            rank
            for place, rank in enumerate(self._placement.rollout)
            if rank != self._rank and len(overlap(block(place, count, self._num_envs), self._envs))
        ]

    def _write(self, metadata: Mapping[str, Any], payload: dict[str, Tensor]) -> None:
        """Write one shard to its columns."""
        buffer, envs = self._model.chunk_buffer, range(*metadata["envs"])
        here = slice(envs.start - self._envs.start, envs.stop - self._envs.start)
        columns = columns_of(envs, self._envs, buffer.columns // len(self._envs))
        self.version_N[here] = metadata["version"]
        if "stats" in metadata:
            self.recorder.merge(metadata["stats"])
        if "groups" in metadata:
            self._write_groups(metadata, here.start, columns, payload.pop("lost"), buffer.columns)
        else:
            if self.last_value_N is None:
                self.last_value_N = torch.zeros(len(self._envs))
            self.last_value_N[here] = payload.pop("last_value")
        buffer.write_columns(columns, payload)

    def _write_groups(
        self, metadata: Mapping[str, Any], first_env: int, columns: Tensor, lost_n: Tensor, num_columns: int
    ) -> None:
        size = int(metadata["groups"][0][0]["size"])
        if self._groups is None:
            empty = [GroupOutcome("", 0, size)] * (num_columns // size)
            self._groups = GroupStats(empty, torch.zeros(num_columns, dtype=torch.bool))
        groups = self._groups
        groups.lost_N[columns] = lost_n
        resampled, extra_rounds = metadata.get("resampled", (0, 0))
        groups.num_resampled += resampled
        groups.extra_rounds += extra_rounds
        for number, outcomes in enumerate(metadata["groups"]):
            first = number * (len(self._envs) // size) + first_env // size
            for place, outcome in enumerate(outcomes, first):
                groups.outcomes[place] = GroupOutcome(**outcome)
