"""`Delivery`: the actor side of a split placement. It orders rollouts, with the weights to collect them, and puts the
columns that come into this rank's buffer, as if it had collected them itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from torch import Tensor

from vla_gym.errors import BadValue
from zoo.distributed.channel import Mail
from zoo.distributed.columns import block, columns_of, overlap
from zoo.distributed.placement import Placement
from zoo.distributed.weight_sync import WeightSender, trained, weights_hash
from zoo.rollout.group_collector import GroupExperience, GroupOutcome
from zoo.training.rollout_worker import Collector

if TYPE_CHECKING:
    from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm


class Delivery:
    """Rollouts for one actor rank; `own` collects in this very process, where the rank has that role too.

    With `max_staleness` k > 0 rollout n is ordered as soon as the weights of version n - k are there, so it is
    collected while k updates are still to be made.
    """

    def __init__(
        self,
        placement: Placement,
        rank: int,
        mail: Mail,
        num_envs: int,
        *,
        own: Collector | None = None,
        max_staleness: int = 0,
    ) -> None:
        self.last_value_N: Tensor | None = None
        """Values after the last decision of this rank's slots; None for groups."""
        self.version_N = np.zeros(0, dtype=np.int64)
        """Version of the weights that collected each of this rank's slots."""
        self.max_staleness = max_staleness
        self._placement = placement
        self._rank = rank
        self._mail = mail
        self._num_envs = num_envs
        self._own = own
        self._place = placement.actor.index(rank)
        self._wanted = block(self._place, len(placement.actor), num_envs)
        self._sender: WeightSender | None = None
        self._ordered = self._delivered = 0

    def gather(self, algorithm: VLAOnPolicyAlgorithm, callback: BaseCallback) -> bool:
        """Have the next rollout collected, and take this rank's columns; False when the run is to stop."""
        version = algorithm._updates_done
        self._order(algorithm, version)
        with algorithm.clock.phase("waiting"):
            self._take_all(algorithm)
        self._delivered = version + 1
        staleness = float(version - self.version_N.min())
        algorithm.record(
            {"rollout/policy_version": float(self.version_N.min()), "rollout/staleness": staleness}
        )
        callback.update_locals({"infos": [], "dones": np.zeros(0, dtype=bool), "env": algorithm.env})
        return callback.on_step()

    def close(self) -> None:
        """Tell rollout ranks to stop; what they have collected ahead of that is thrown away."""
        for _ in range(self._delivered, self._ordered):
            for rank in self._senders():
                self._mail.receive(rank)
        for rank in self._below():
            self._mail.send(rank, {"stop": True})
        self._mail.wait()

    def _order(self, algorithm: VLAOnPolicyAlgorithm, version: int) -> None:
        """Send out the weights of `version` with orders for the rollouts that may be collected with them."""
        digest = weights_hash(trained(algorithm.policy))
        if len(set(algorithm.process_group.all_gather_object(digest))) > 1:
            raise BadValue(f"the actor ranks' weights of version {version} differ from each other")
        self._ordered = max(self._ordered, version)
        numbers = range(self._ordered, version + self.max_staleness + 1)
        self._ordered = numbers.stop
        if self._below():
            self._send_orders(algorithm, version, numbers)
        if self._own is not None:
            self._own.version = version
            self._own.collect(version)

    def _send_orders(self, algorithm: VLAOnPolicyAlgorithm, version: int, numbers: range) -> None:
        if self._sender is None:
            self._sender = WeightSender(algorithm.policy)
        sent = 0
        for number in numbers:
            update = self._sender.update(version)
            sent += update.size
            order = {"stop": False, "rollout": number, "version": version, "digest": update.digest}
            for rank in self._below():
                self._mail.send(rank, order, update.tensors)
        algorithm.record({"placement/weights_mb": sent / 1e6})

    def _take_all(self, algorithm: VLAOnPolicyAlgorithm) -> None:
        self.version_N = np.zeros(len(self._wanted), dtype=np.int64)
        self.last_value_N = None
        if isinstance(algorithm.experience, GroupExperience):
            self._forget_groups(algorithm, algorithm.experience)
        if self._own is not None:
            # Before waiting for others, who may wait for this rank's.
            for place, actor in enumerate(self._placement.actor):
                if actor != self._rank and len(overlap(self._own.held, block(place, *self._shares))):
                    self._mail.send(actor, *self._own.parcel(place))
            if len(overlap(self._own.held, self._wanted)):
                self._take(algorithm, *self._own.parcel(self._place))
        for rank in self._senders():
            self._take(algorithm, *self._mail.receive(rank))

    def _below(self) -> tuple[int, ...]:
        """Ranks that get weights and orders from this one; none unless it is the first actor rank."""
        return self._placement.relay(self._rank)[1]

    @property
    def _shares(self) -> tuple[int, int]:
        return len(self._placement.actor), self._num_envs

    def _senders(self) -> list[int]:
        """Other ranks that collect slots of this one."""
        count = len(self._placement.rollout)
        return [
            rank
            for place, rank in enumerate(self._placement.rollout)
            if rank != self._rank and len(overlap(block(place, count, self._num_envs), self._wanted))
        ]

    def _take(
        self, algorithm: VLAOnPolicyAlgorithm, note: Mapping[str, Any], tensors: dict[str, Tensor]
    ) -> None:
        """Put one parcel where it belongs."""
        part, buffer = range(*note["slots"]), algorithm.chunk_buffer
        here = slice(part.start - self._wanted.start, part.stop - self._wanted.start)
        rounds = buffer.columns // len(self._wanted)
        columns = columns_of(part, self._wanted, rounds)
        self.version_N[here] = note["version"]
        if "news" in note:
            algorithm.news.take(note["news"])
        if isinstance(algorithm.experience, GroupExperience):
            self._take_groups(algorithm, note, part, columns, tensors.pop("lost"))
        else:
            if self.last_value_N is None:
                self.last_value_N = torch.zeros(len(self._wanted))
            self.last_value_N[here] = tensors.pop("last_value")
        buffer.write_columns(columns, tensors)

    def _forget_groups(self, algorithm: Any, experience: GroupExperience) -> None:
        columns = algorithm.chunk_buffer.columns
        experience.outcomes = [GroupOutcome("", 0, algorithm.group_size)] * (columns // algorithm.group_size)
        experience.lost_N = torch.zeros(columns, dtype=torch.bool)
        experience.num_resampled = experience.extra_rounds = 0

    def _take_groups(
        self, algorithm: Any, note: Mapping[str, Any], part: range, columns: Tensor, lost_n: Tensor
    ) -> None:
        experience, size = algorithm.experience, algorithm.group_size
        experience.lost_N[columns] = lost_n
        if "resampled" in note:
            experience.num_resampled += note["resampled"][0]
            experience.extra_rounds += note["resampled"][1]
        of_round = len(self._wanted) // size
        first = (part.start - self._wanted.start) // size
        for number, outcomes in enumerate(note["groups"]):
            for place, outcome in enumerate(outcomes, number * of_round + first):
                experience.outcomes[place] = GroupOutcome(**outcome)
