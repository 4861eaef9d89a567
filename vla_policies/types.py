"""Records between a policy and its callers. Shape letters: see `vla_gym.specs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor


def is_padded(mask_BL: Tensor) -> bool:
    """Whether a mask hides anything; of one on a GPU, which would be waited for, that is taken as given."""
    return mask_BL.device.type != "cpu" or not bool(mask_BL.all())


@dataclass(frozen=True)
class PolicyInputs:
    """A processor's output for B observations, M cameras and L text tokens."""

    pixels_BMCHW: Tensor
    """Images resized and normalised for the model, floating point."""
    text_BL: Tensor
    """Token ids, int64, right padded; of a frozen encoder outside the network its vectors, float32 `[B, L, F]`."""
    text_mask_BL: Tensor
    """True where a text token is real. On the CPU: padding decides what is computed, and a GPU would be waited for."""
    state_BS: Tensor | None
    """Proprioception, float32; None when the policy has no state input."""
    features: tuple[Tensor, ...] | None = None
    """Outputs of `Backbone.features`, batch first; None: they are computed on the way."""

    def mapped(self, function: Callable[[Tensor], Tensor]) -> PolicyInputs:
        """The same of every tensor's `function`."""
        return PolicyInputs(
            pixels_BMCHW=function(self.pixels_BMCHW),
            text_BL=function(self.text_BL),
            text_mask_BL=function(self.text_mask_BL),
            state_BS=None if self.state_BS is None else function(self.state_BS),
            features=None if self.features is None else tuple(map(function, self.features)),
        )

    def trimmed(self) -> PolicyInputs:
        """Without the right end of the text that is padding in every row: the masked result is the same, the work
        less."""
        length = int(self.text_mask_BL.sum(dim=1).max())
        return replace(self, text_BL=self.text_BL[:, :length], text_mask_BL=self.text_mask_BL[:, :length])


@dataclass(frozen=True)
class ActionSample:
    """Decisions for B observations."""

    action_BKA: Tensor
    """Environment action chunk, float32 in [-1, 1]."""
    logprob_BKA: Tensor
    """Log-probability of each action token (or Gaussian dim), float32."""
    value_B: Tensor
    """State value of each observation, float32 (zeros when the policy has no value head)."""
    record: Mapping[str, Tensor] = field(default_factory=dict)
    """Input of `evaluate`, which scores this decision again, batch first: token policies store
    `{"token": int64[B, K, A]}`, flow policies their denoising chain. The rollout buffer keeps it unchanged."""
    value_BK: Tensor | None = None
    """Value of each step of the chunk, float32, where the critic has an output for each; `value_B` is the first."""

    def mapped(self, function: Callable[[Tensor], Tensor]) -> ActionSample:
        """The same of every tensor's `function`, in the order of the fields."""
        return ActionSample(
            action_BKA=function(self.action_BKA),
            logprob_BKA=function(self.logprob_BKA),
            value_B=function(self.value_B),
            record={name: function(x) for name, x in self.record.items()},
            value_BK=None if self.value_BK is None else function(self.value_BK),
        )


def tensors_of(record: PolicyInputs | ActionSample) -> list[Tensor]:
    """Every tensor of a record, in the order of `mapped`."""
    found: list[Tensor] = []

    def note(x: Tensor) -> Tensor:
        found.append(x)
        return x

    record.mapped(note)
    return found


@dataclass(frozen=True)
class Evaluation:
    """A stored decision scored by the present weights, with gradients."""

    logprob_BKA: Tensor
    """Same numbers as `ActionSample.logprob_BKA` when the weights have not changed."""
    entropy_BKA: Tensor
    """Entropy of each action distribution, nats."""
    value_B: Tensor
    """State value, float32."""
    value_BK: Tensor | None = None
    """Value of each step of the chunk, float32, where the critic has an output for each; `value_B` is the first."""
    privileged_BP: Tensor | None = None
    """Prediction of the simulator's privileged vector, where the policy has a head for it."""
