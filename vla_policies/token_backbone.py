"""Token policies: of a network that gives logits for every token of the chunk at once, all but `forward`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vla_policies.actions.noise import TORCH_NOISE, Noise
from vla_policies.actions.sampling import ActionCodec, ActionTokenDistribution, Sampling, token_log_probs
from vla_policies.backbone import Backbone
from vla_policies.conventions import Conventions
from vla_policies.types import ActionSample, Evaluation, PolicyInputs


@dataclass(frozen=True)
class BackboneOutput:
    """One forward pass of a token family."""

    logits_BKAV: Tensor
    """Unnormalised scores of every bin, any float dtype."""
    value_B: Tensor
    """State value, any float dtype."""
    value_BK: Tensor | None = None
    """Value of each step of the chunk, float32, where the critic has an output for each."""
    privileged_BP: Tensor | None = None
    """Prediction of `backbone.privileged`, where there is that head."""


class TokenBackbone(Backbone):
    """Discrete action tokens, the whole chunk in one pass: subclasses implement `forward`."""

    def __init__(self, conventions: Conventions, codec: ActionCodec) -> None:
        super().__init__(conventions)
        self.codec = codec

    @abstractmethod
    def forward(self, inputs: PolicyInputs) -> BackboneOutput:
        """Logits of all K x A tokens and the state value, from one pass over the shared prefix."""

    def distribution(self, inputs: PolicyInputs, sampling: Sampling) -> ActionTokenDistribution:
        return self.distribution_of(self(inputs), sampling)

    def record_of(self, action_BKA: Tensor) -> Mapping[str, Tensor]:
        return {"token": self.codec.encode(action_BKA)}

    def act(
        self, inputs: PolicyInputs, sampling: Sampling, *, deterministic: bool, noise: Noise = TORCH_NOISE
    ) -> ActionSample:
        return self._drawn(self(inputs), sampling, deterministic=deterministic, noise=noise)

    def candidates(self, inputs: PolicyInputs, sampling: Sampling, num: int, noise: Noise = TORCH_NOISE) -> Tensor:
        return self.codec.decode(self.distribution(inputs, sampling).draw_many(num, noise))

    def act_guided(
        self,
        inputs: PolicyInputs,
        plain: PolicyInputs,
        guidance: float,
        sampling: Sampling,
        *,
        deterministic: bool,
        noise: Noise = TORCH_NOISE,
    ) -> ActionSample:
        wanted, other = self(inputs), self(plain)
        logits_BKAV = other.logits_BKAV + guidance * (wanted.logits_BKAV - other.logits_BKAV)
        output = replace(wanted, logits_BKAV=logits_BKAV)
        return self._drawn(output, sampling, deterministic=deterministic, noise=noise)

    def _drawn(self, output: BackboneOutput, sampling: Sampling, *, deterministic: bool, noise: Noise) -> ActionSample:
        distribution = self.distribution_of(output, sampling)
        token_BKA = distribution.draw(deterministic, noise)
        return ActionSample(
            action_BKA=self.codec.decode(token_BKA),
            logprob_BKA=distribution.token_log_prob(token_BKA),
            value_B=output.value_B.float(),
            record={"token": token_BKA},
            value_BK=output.value_BK,
        )

    def evaluate(self, inputs: PolicyInputs, record: Mapping[str, Tensor], sampling: Sampling) -> Evaluation:
        output: BackboneOutput = self(inputs)
        distribution = self.distribution_of(output, sampling)
        return Evaluation(
            logprob_BKA=distribution.token_log_prob(record["token"]),
            entropy_BKA=distribution.token_entropy(),
            value_B=output.value_B.float(),
            value_BK=output.value_BK,
            privileged_BP=output.privileged_BP,
        )

    def value(self, inputs: PolicyInputs) -> Tensor:
        output: BackboneOutput = self(inputs)
        return output.value_B.to(torch.float32)

    def distribution_of(self, output: BackboneOutput, sampling: Sampling) -> ActionTokenDistribution:
        """The distribution over chunks that a forward pass gave."""
        return ActionTokenDistribution(token_log_probs(output.logits_BKAV, sampling), self.codec, sampling.greedy)
