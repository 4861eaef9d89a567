"""Flow policies on a vision-language model: pi0, pi0.5 and SmolVLA.

The VLM encodes images and text once for a decision, a smaller expert denoises given its keys and values. Where the VLM
is frozen its passes keep no activations, and what it made of an observation may be kept for an update's epochs.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_gym.errors import unknown_name
from vla_policies.checkpoint_io.json_records import from_json, to_json
from vla_policies.conventions import Conventions
from vla_policies.flow_backbone import FlowBackbone
from vla_policies.modules.feature_cache import GIB, FeatureCache
from vla_policies.modules.heads import Critic, NoiseHead
from vla_policies.modules.streams import KeyValue, Prefix
from vla_policies.types import PolicyInputs
from vla_policies.vlm_flow.config import WORDS, FlowLearning, VLMFlowConfig
from vla_policies.vlm_flow.processor import FlowProcessor

_log = logging.getLogger(__name__)

SIZES = ("tiny", "full")
"""Sizes of fresh weights: for trials, and the published one with random weights."""
UNPLANNED = ("delta_dims", "use_statistics")
"""Options that sizes do not depend on."""


@dataclass(frozen=True)
class Context:
    """The encoded observation of a decision."""

    memory: Prefix
    """Images and text, as every layer of the expert reads them."""
    state_BS: Tensor | None
    """Normalised, padded state, where the expert reads it."""
    feature_BW: Tensor | None
    """The critic's input; None = the expert's hidden states."""


class VLMFlowBackbone(FlowBackbone):
    """Base of the families; subclasses build the network, and implement `encode` and `denoise`."""

    config_class: ClassVar[type[VLMFlowConfig]]
    """Settings of one checkpoint."""
    recompute_option: ClassVar[str | None] = "recompute_activations"
    fits_environment: ClassVar[bool] = True
    played_options: ClassVar[Mapping[str, Any]] = {"eval_noise": "random"}

    def __init__(self, conventions: Conventions, config: VLMFlowConfig, *, empty: bool = False) -> None:
        """:param empty: create the network on the meta device; `load` fills it."""
        shape, learning, flow = config.network, config.learning, config.flow
        conventions = replace(conventions, image_size=shape.image_size)
        super().__init__(conventions, flow, horizon=shape.horizon, flow_width=shape.action_width)
        self.config = config
        with torch.device("meta") if empty else torch.get_default_device():
            self._build_network()
        read = shape.expert.width if learning.value_feature == "expert" else shape.vlm_width
        self.value_head = Critic(read, learning.value_hidden)
        self.noise_head = (
            NoiseHead(shape.expert.width, learning.noise_hidden, self.flow_width, flow.noise_std)
            if flow.scheme == "flow_noise"
            else None
        )
        self._reset_cache()

    # Implemented by families --------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def config_of_size(cls, size: str, action_dim: int) -> VLMFlowConfig:
        """Settings of fresh weights of one of `SIZES`."""

    @abstractmethod
    def _build_network(self) -> None:
        """Create the network of `config`."""

    @abstractmethod
    def _build_processor(self) -> FlowProcessor:
        """Observation to inputs, denoised chunks to actions."""

    @property
    @abstractmethod
    def vlm(self) -> Any:
        """The module that encodes images and text: `embed`, and `forward` to a `Prefix`."""

    @property
    @abstractmethod
    def expert(self) -> Any:
        """The stream that denoises."""

    # Building -----------------------------------------------------------------------------------------

    @classmethod
    def wants_fresh(cls, options: Mapping[str, Any]) -> bool:
        return "size" in options or "network" in options

    @classmethod
    def fresh(cls, conventions: Conventions, options: Mapping[str, Any]) -> Self:
        """Random weights: `size: tiny` or `full`, and any setting of `flow` and `learning` by name."""
        rest = dict(options)
        if "network" in rest:
            return cls.from_config(conventions, rest, f"backbone_kwargs of {cls.family}", empty=False)
        size = rest.pop("size", None)
        if size not in SIZES:
            raise unknown_name(f"size of {cls.family}", str(size), SIZES)
        return cls(conventions, cls.config_of_size(size, conventions.action_dim).with_options(rest))

    @classmethod
    def planned_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        # With hashed words: tokenizers are downloads.
        found = {key: value for key, value in options.items() if key not in UNPLANNED}
        if "network" in found:
            return {**found, "preprocessing": {**found["preprocessing"], "tokenizer": WORDS}}
        if found.get("size", "full") != "full":
            return found
        outside: dict[str, Any] = {
            key: found.pop(key) for key in ("cameras", "image_size", "use_state") if key in found
        }
        config = cls.config_of_size(found.pop("size", "full"), cls.default_conventions.action_dim)
        shape = replace(config.network, horizon=found.pop("horizon", None) or config.network.horizon)
        config = replace(config, network=shape).with_tokenizer(WORDS).with_options(found)
        return {**to_json(config), **outside}

    @classmethod
    def from_config(
        cls, conventions: Conventions, config: Mapping[str, Any], where: str, *, empty: bool = True
    ) -> Self:
        return cls(conventions, from_json(cls.config_class, config, where), empty=empty)

    @classmethod
    def with_options(cls, model: Mapping[str, Any], options: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        return to_json(from_json(cls.config_class, model, f"model of '{where}'").with_options(options))

    @classmethod
    def read_as(cls, model: Mapping[str, Any]) -> dict[str, Any]:
        preprocessing = model["preprocessing"]
        there = "state" if preprocessing["action"] is None else "action"
        key = preprocessing["data_set"] if preprocessing[there] is not None else "none"
        left_out = ("state", "action", "data_set", "max_tokens", "tokenizer")
        settings = {name: value for name, value in preprocessing.items() if name not in left_out}
        return {"statistics": key or "of one data set", **settings, **super().read_as(model)}

    @classmethod
    def dtype_options(cls, dtype: str) -> dict[str, Any]:
        return {"vlm_dtype": dtype}

    @property
    def learning(self) -> FlowLearning:
        """Heads and trainable parts."""
        return self.config.learning

    @cached_property
    def processor(self) -> FlowProcessor:
        """Observation to inputs, denoised chunks to actions."""
        return self._build_processor()

    def _loaded(self, folder: Path) -> None:
        """With weights in place: build the processor, which says what the folder lacks, and drop kept prefixes."""
        self._reset_cache()
        vars(self).pop("processor", None)
        if torch.get_default_device().type != "meta":
            preprocessing = self.processor.preprocessing
            if preprocessing.action is None and preprocessing.tokenizer != WORDS:
                _log.warning("'%s' has no statistics: states and actions are taken as they are", folder)

    # Deciding -----------------------------------------------------------------------------------------

    def value_parameters(self) -> Iterator[nn.Parameter]:
        return self.value_head.parameters()

    def prepare(self, obs: Mapping[str, Tensor]) -> PolicyInputs:
        return self.processor.prepare(obs).trimmed()

    def to_env(self, x_BHD: Tensor, inputs: PolicyInputs) -> Tensor:
        return self.processor.to_env(x_BHD, inputs)

    def from_env(self, action_BKA: Tensor, inputs: PolicyInputs) -> Tensor:
        action_BKA = self.processor.from_env(action_BKA, inputs)
        missing = (self.flow_width - action_BKA.shape[2], self.horizon - action_BKA.shape[1])
        return functional.pad(action_BKA, (0, missing[0], 0, missing[1]))

    def value_of(self, context: Context) -> Tensor:
        detached, feature_BW = self.learning.detach_value, context.feature_BW
        if feature_BW is None:
            num, device = len(context.memory.mask_BL), context.memory.mask_BL.device
            with torch.set_grad_enabled(torch.is_grad_enabled() and not detached):
                feature_BW = self.expert_feature(context, num, device)
        return self.value_head(feature_BW.detach() if detached else feature_BW)

    def features(self, inputs: PolicyInputs) -> tuple[Tensor, ...]:
        prefix = self._encode_prefix(inputs)
        tensors = [x for layer in prefix.layers for x in (layer.key_BCLF, layer.value_BCLF)]
        mean = () if prefix.mean_BW is None else (prefix.mean_BW,)
        return torch.stack(tensors, dim=1), prefix.mask_BL, *mean

    def prefix_of(self, inputs: PolicyInputs) -> tuple[Prefix, Tensor | None]:
        """Images and text, encoded, and the mean of their hidden states where the critic reads it."""
        if inputs.features is None:
            prefix = self._encode_prefix(inputs)
            return prefix, prefix.mean_BW
        stacked_BTCLF, mask_BL, *mean = inputs.features
        tensors = stacked_BTCLF.unbind(dim=1)
        layers = tuple(map(KeyValue, tensors[::2], tensors[1::2]))
        return Prefix(layers, mask_BL, None), mean[0] if mean else None

    def _encode_prefix(self, inputs: PolicyInputs) -> Prefix:
        """Images and text through the VLM, without a graph where all of it is frozen."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self._prefix_is_frozen):
            x_BLW, mask_BL = self.vlm.embed(inputs.pixels_BMCHW, None, inputs.text_BL, inputs.text_mask_BL)
            return self.vlm(x_BLW, mask_BL, with_hidden=self.learning.value_feature == "prefix")

    @property
    def _prefix_is_frozen(self) -> bool:
        return self.learning.train_expert_only

    def set_recompute(self, on: bool) -> None:
        self.vlm.recompute = self.expert.recompute = on

    def keep_features(self, max_bytes: int | None = None) -> None:
        if self.learning.cache_features is None and self.kept is None and self._prefix_is_frozen:
            self.kept = FeatureCache(max_bytes)

    @property
    def _vlm_dtype(self) -> torch.dtype:
        asked, frozen = self.learning.vlm_dtype, self.learning.train_expert_only
        half = self.built_for_gpu and frozen if asked == "auto" else asked == "bfloat16"
        return torch.bfloat16 if half else torch.float32

    def _reset_cache(self) -> None:
        asked = self.learning.cache_features
        self.kept = FeatureCache(int(asked * GIB)) if asked else None
