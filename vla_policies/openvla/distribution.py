"""The distribution over actions whose tokens depend on one another: sampled by generating, scored by reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from stable_baselines3.common.distributions import Distribution
from torch import Tensor, nn

from vla_policies.actions.sampling import Sampling
from vla_policies.types import PolicyInputs

if TYPE_CHECKING:
    from vla_policies.backbone import Backbone


class GeneratedDistribution(Distribution):
    """Speaks whole chunks of environment actions, as Stable-Baselines3 does.

    There is no table of log-probabilities to hold: every question runs the network on the observations.
    """

    def __init__(self, backbone: Backbone, inputs: PolicyInputs, sampling: Sampling) -> None:
        super().__init__()
        self._backbone = backbone
        self._inputs = inputs
        self._sampling = sampling

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability of env actions (`[B, K, A]` or flat), float32 `[B]`, with gradients."""
        conventions = self._backbone.conventions
        action_BKA = actions.reshape(-1, conventions.chunk, conventions.action_dim)
        record = self._backbone.record_of(action_BKA)
        return self._backbone.evaluate(self._inputs, record, self._sampling).logprob_BKA.sum(dim=(1, 2))

    def entropy(self) -> None:
        """None: it has no closed form; SB3 then estimates it from log-probabilities of samples."""

    def sample(self) -> Tensor:
        """Env actions drawn at random, float32 `[B, K, A]`."""
        return self._act(deterministic=False)

    def mode(self) -> Tensor:
        """Env actions of tokens each the likeliest given those before, float32 `[B, K, A]`."""
        return self._act(deterministic=True)

    def _act(self, *, deterministic: bool) -> Tensor:
        with torch.no_grad():
            return self._backbone.act(self._inputs, self._sampling, deterministic=deterministic).action_BKA

    def proba_distribution_net(self, *args: Any, **kwargs: Any) -> nn.Module:
        """SB3's hook for building a head; here the head belongs to the backbone."""
        raise NotImplementedError("the action head is part of the backbone")

    def proba_distribution(self, inputs: PolicyInputs, sampling: Sampling) -> GeneratedDistribution:
        """Set the observations; returns self."""
        self._inputs, self._sampling = inputs, sampling
        return self

    def actions_from_params(
        self, inputs: PolicyInputs, sampling: Sampling, deterministic: bool = False
    ) -> Tensor:
        """Env actions for new observations."""
        return self.proba_distribution(inputs, sampling).get_actions(deterministic=deterministic)

    def log_prob_from_params(self, inputs: PolicyInputs, sampling: Sampling) -> tuple[Tensor, Tensor]:
        """Env actions for new observations, and their log-probability `[B]`."""
        actions = self.actions_from_params(inputs, sampling)
        return actions, self.log_prob(actions)
