"""`RolloutWorker`: the rollout side of a split placement.

It decides with the weights that a rollout request brings, and sends each actor rank its shard of the rollout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from torch import Tensor

from vla_gym.errors import BadValue
from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.distributed.channel import Channel
from zoo.distributed.placement import Placement, block, overlap
from zoo.distributed.weight_sync import WeightSync, trained, weights_hash, weights_layout
from zoo.rollout.minibatches import columns_of
from zoo.rollout.stats import GroupOutcome
from zoo.rollout.types import RolloutStart


class RolloutWorker:
    """Collects rollouts with `model`'s policy in its environments, this rank's share of `num_envs`."""

    def __init__(
        self,
        model: VLAOnPolicyAlgorithm,
        placement: Placement,
        rank: int,
        channel: Channel,
        num_envs: int,
        *,
        weights: WeightSync | None,
    ) -> None:
        """`weights`: brings those of the first actor rank, where this rank does not learn."""
        self.policy = model.policy
        self.collector = model.collector()
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
            self._receive_weights(request)
            self.weigh_starts(request["start_weights"])
            for rollout in request["rollouts"]:
                self.collect(rollout)
                for place, actor in enumerate(self._placement.actor):
                    if len(self._shard_envs(place)):
                        self._channel.send(actor, *self.shard(place))
        self._channel.wait()

    def _receive_weights(self, request: Mapping[str, Any]) -> None:
        assert self._weights is not None, "this rank learns: it receives no weights"
        if request["layout"] != weights_layout(self.policy):
            raise BadValue(
                "the weights trained here have other names, types or shapes than the first actor rank's: do all ranks "
                "read the same checkpoint with the same versions of the code?"
            )
        self._weights.receive()
        self.version = request["version"]
        if request["digest"] is not None and request["digest"] != weights_hash(trained(self.policy)):
            raise BadValue(f"weights of version {self.version} differ here from the first actor rank's")

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
        """Metadata (JSON values) and payload of the rollout for the actor rank at place `actor`."""
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
