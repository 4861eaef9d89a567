"""Flow policies on a vision-language model: pi0, pi0.5 and SmolVLA.

The VLM encodes images and text once for a decision, a smaller expert denoises given its keys and values. Where the VLM
is frozen its passes keep no activations, and what it made of an observation may be kept for an update's epochs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_gym.errors import BadValue, unknown_name
from vla_policies.actions.flow import FlowSettings
from vla_policies.checkpoint_io.json_records import changed
from vla_policies.flow_backbone import FlowBackbone
from vla_policies.modules.critic import Critic
from vla_policies.modules.feature_cache import GIB, FeatureCache
from vla_policies.modules.flow_head import NoiseHead
from vla_policies.modules.prefix import Prefix, join_prefixes, split_prefix
from vla_policies.types import PolicyInputs


@dataclass(frozen=True, kw_only=True)
class FlowLearning:
    """Heads and trainable parts."""

    value_hidden: tuple[int, ...] = (512, 256, 128)
    """Hidden features of the critic; 1024, 512, 256 is published for pi0.5 on LIBERO and ManiSkill."""
    detach_value: bool = True
    """Whether the critic's gradient stops at its input."""
    noise_hidden: tuple[int, ...] = (128, 64)
    """Hidden features of Flow-Noise's network."""
    train_expert_only: bool = True
    """Freeze the VLM: its pass then keeps no activations."""
    recompute_activations: bool = False
    """Keep only the layers' inputs while training and run the layers again in the backward pass."""
    cache_features: float = 0.0
    """GiB of prefixes (keys and values of the frozen VLM) kept from acting for the epochs of an update; 0 = none."""
    vlm_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the VLM's weights: "auto" is bfloat16 for a frozen VLM on a GPU, else float32. The expert and the
    heads stay in float32."""

    def __post_init__(self) -> None:
        if not self.value_hidden or not self.noise_hidden:
            raise BadValue("value_hidden and noise_hidden need at least one number each")
        if self.vlm_dtype not in ("auto", "float32", "bfloat16"):
            raise unknown_name("vlm_dtype", str(self.vlm_dtype), ("auto", "float32", "bfloat16"))
        if self.cache_features and not self.train_expert_only:
            raise BadValue("cache_features is for a frozen VLM; train_expert_only must be true")
        if self.vlm_dtype == "bfloat16" and not self.train_expert_only:
            raise BadValue("a VLM that is trained keeps float32 weights; vlm_dtype: bfloat16 is for a frozen one")


class Processor(Protocol):
    """Observation to inputs, denoised chunks to actions."""

    def prepare(self, obs: Mapping[str, Tensor]) -> PolicyInputs:
        """Tensors of B observations to network inputs."""

    def to_env(self, x_BHD: Tensor, inputs: PolicyInputs) -> Tensor:
        """Denoised chunks to environment actions, float32 `[B, K, A]` in [-1, 1]."""

    def from_env(self, action_BKA: Tensor, inputs: PolicyInputs) -> Tensor:
        """Environment actions to the network's units, `[B, K, A]`: inverse of `to_env`."""


class VLMFlowBackbone(FlowBackbone):
    """Base of the families; subclasses build `network` and call `_add_heads`, and implement the passes."""

    learning: FlowLearning
    """Heads and trainable parts."""

    def _add_heads(self, flow: FlowSettings, learning: FlowLearning, *, value_width: int, expert_width: int) -> None:
        """Create the critic on `value_width` features and, for Flow-Noise, the head that learns its noise."""
        self.learning = learning
        self.value_head = Critic(value_width, learning.value_hidden)
        self.noise_head = (
            NoiseHead(expert_width, learning.noise_hidden, self.flow_width, flow.noise_std)
            if flow.scheme == "flow_noise"
            else None
        )
        self._reset_cache()

    @abstractmethod
    def encode_prefix(self, pixels_BMCHW: Tensor, text_BL: Tensor, text_mask_BL: Tensor) -> Prefix:
        """Images and text through the VLM."""

    @property
    @abstractmethod
    def processor(self) -> Processor:
        """Observation to inputs, denoised chunks to actions."""

    def value_parameters(self) -> Iterator[nn.Parameter]:
        return self.value_head.parameters()

    def prepare(self, obs: Mapping[str, Tensor]) -> PolicyInputs:
        return self.processor.prepare(obs)

    def to_env(self, x_BHD: Tensor, inputs: PolicyInputs) -> Tensor:
        return self.processor.to_env(x_BHD, inputs)

    def from_env(self, action_BKA: Tensor, inputs: PolicyInputs) -> Tensor:
        action_BKA = self.processor.from_env(action_BKA, inputs)
        missing = (self.flow_width - action_BKA.shape[2], self.horizon - action_BKA.shape[1])
        return functional.pad(action_BKA, (0, missing[0], 0, missing[1]))

    def learned_std(self, hidden_BHE: Tensor) -> Tensor:
        assert self.noise_head is not None
        return self.noise_head(hidden_BHE)

    def prefix_of(self, inputs: PolicyInputs) -> Prefix:
        """Images and text, encoded; with `cache_features`, kept ones of equal observations."""
        observed = (inputs.pixels_BMCHW, inputs.text_BL, inputs.text_mask_BL)
        if self._prefixes is None or inputs.keys is None:
            return self._encode_trimmed(*observed)
        rows = self._prefixes.rows(
            inputs.keys, lambda places: split_prefix(self._encode_trimmed(*(x[places] for x in observed)))
        )
        return join_prefixes(rows)

    def _encode_trimmed(self, pixels_BMCHW: Tensor, text_BL: Tensor, text_mask_BL: Tensor) -> Prefix:
        """As `encode_prefix`, without text columns that are padding for all, nor a graph where all is frozen."""
        length = int(text_mask_BL.sum(dim=1).max())
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self._prefix_is_frozen):
            return self.encode_prefix(pixels_BMCHW, text_BL[:, :length], text_mask_BL[:, :length])

    @property
    def _prefix_is_frozen(self) -> bool:
        """Whether nothing that encodes images and text is trained."""
        return self.learning.train_expert_only

    @property
    def keeps_features(self) -> bool:
        return bool(self.learning.cache_features)

    @property
    def _vlm_dtype(self) -> torch.dtype:
        asked, frozen = self.learning.vlm_dtype, self.learning.train_expert_only
        half = self.built_for_gpu and frozen if asked == "auto" else asked == "bfloat16"
        return torch.bfloat16 if half else torch.float32

    def _reset_cache(self) -> None:
        """Drop the prefixes of earlier weights."""
        gib = self.learning.cache_features
        self._prefixes = FeatureCache(int(gib * GIB)) if gib else None


Config = TypeVar("Config")


def with_options(config: Config, options: Mapping[str, Any], settable: Sequence[str], family: str) -> Config:
    """`config` with settings of its `flow`, `learning` and the `settable` ones of `preprocessing` changed by name."""
    parts = {name: getattr(config, name) for name in ("flow", "learning", "preprocessing")}
    own = {name: [item.name for item in fields(part)] for name, part in parts.items()}
    own["preprocessing"] = list(settable)
    names = [name for part in own.values() for name in part]
    for key in options:
        if key not in names:
            raise unknown_name(f"option of a {family} checkpoint", key, names)
    new = {
        name: changed(part, {key: value for key, value in options.items() if key in own[name]}, "backbone_kwargs")
        for name, part in parts.items()
    }
    return replace(config, **new)  # type: ignore[type-var]
