"""`Collector`: the rollout side of a split placement. It decides with the weights that an order brings, and sends each
actor rank the columns that are its."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.logger import Logger
from torch import Tensor

from zoo.distributed.channel import Mail
from zoo.distributed.columns import block, columns_of, overlap
from zoo.distributed.placement import Placement
from zoo.distributed.weight_sync import WeightUpdate, receive_weights
from zoo.rollout.group_collector import GroupExperience

if TYPE_CHECKING:
    from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm


class Collector:
    """Collects rollouts with `model`, whose environments are this rank's share of `num_envs`."""

    def __init__(
        self, model: VLAOnPolicyAlgorithm, placement: Placement, rank: int, mail: Mail, num_envs: int
    ) -> None:
        self.model: Any = model
        self.version = -1
        """Updates that the present weights have gone through; -1 before the first order."""
        self._placement = placement
        self._rank = rank
        self._place = placement.rollout.index(rank)
        self._mail = mail
        self._num_envs = num_envs
        self.held = block(self._place, len(placement.rollout), num_envs)
        """Slots of all `num_envs` that this rank collects."""
        self._callback = CallbackList([])
        model.set_logger(Logger(folder=None, output_formats=[]))
        self._callback.init_callback(model)

    def serve(self, max_staleness: int) -> None:
        """Follow the first actor rank's orders, and pass them on, until it says stop."""
        source, below = self._placement.relay(self._rank)
        assert source is not None, "this rank learns: its weights come from nobody"
        first = None
        while True:
            order, tensors = self._mail.receive(source)
            for rank in below:
                self._mail.send(rank, order, tensors)
            if order["stop"]:
                break
            first = order["version"] if first is None else first
            update = WeightUpdate(order["version"], tensors, order["digest"])
            receive_weights(self.model.policy, update, wanted=max(first, order["rollout"] - max_staleness))
            self.version = order["version"]
            self.collect(order["rollout"])
            for place, actor in enumerate(self._placement.actor):
                if len(self._part(place)):
                    self._mail.send(actor, *self.parcel(place))
        self._mail.wait()

    def collect(self, rollout: int) -> None:
        """Rollout number `rollout` of the run, into the model's buffer."""
        model = self.model
        if model._last_obs is None:
            self._begin(rollout)
        model._updates_done = rollout
        model.policy.set_training_mode(False)
        model.chunk_buffer.reset()
        model.begin_rollout()
        self._callback.on_rollout_start()
        finished = model.experience.gather(model, model.env, self._callback)
        assert finished, "nothing here stops a rollout"

    def parcel(self, actor: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What the actor rank at place `actor` gets of the rollout: a note of JSON values, and tensors."""
        model, part = self.model, self._part(actor)
        rounds = model.chunk_buffer.columns // len(self.held)
        columns = columns_of(part, self.held, rounds)
        tensors = {name: one[:, columns] for name, one in model.chunk_buffer.collected().items()}
        note: dict[str, Any] = {"version": self.version, "slots": [part.start, part.stop]}
        if part.start == self.held.start:
            # What is of the whole rank and not of columns is told once.
            note["news"] = model.news.own()
        if isinstance(model.experience, GroupExperience):
            note["groups"] = self._groups(model.experience, part, rounds)
            if "news" in note:
                note["resampled"] = [model.experience.num_resampled, model.experience.extra_rounds]
            tensors["lost"] = model.experience.lost_N[columns]
        else:
            last_value_N = model.experience.last_values(model)
            tensors["last_value"] = last_value_N[part.start - self.held.start : part.stop - self.held.start]
        return note, tensors

    def _part(self, actor: int) -> range:
        return overlap(self.held, block(actor, len(self._placement.actor), self._num_envs))

    def _groups(self, experience: GroupExperience, part: range, rounds: int) -> list[list[dict[str, Any]]]:
        """Outcomes of the part's groups, by round."""
        size = self.model.group_size
        of_round = len(self.held) // size
        first, last = (part.start - self.held.start) // size, (part.stop - self.held.start) // size
        return [
            [asdict(one) for one in experience.outcomes[number * of_round + first : number * of_round + last]]
            for number in range(rounds)
        ]

    def _begin(self, rollout: int) -> None:
        """An episode in every slot; a run that goes on draws other start states than at its beginning."""
        model = self.model
        if rollout:
            model.env.seed(model.noise_seed + rollout)
        model._last_obs = model.env.reset()
        if hasattr(model, "_needs_reset"):
            model._needs_reset = False
