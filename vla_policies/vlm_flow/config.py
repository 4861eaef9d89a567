"""Common to the configs of pi0, pi0.5 and SmolVLA: sizes, preprocessing, heads and trainable parts.

Plain data; a family adds its own and the defaults of its published weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final, Literal, Self

from torch import Tensor

from vla_gym.errors import BadValue, unknown_name
from vla_policies.actions.flow import FlowSettings
from vla_policies.checkpoint_io.folder import check_positive
from vla_policies.checkpoint_io.json_records import changed
from vla_policies.modules.feature_cache import check_gib
from vla_policies.modules.streams import GemmaShape
from vla_policies.processing.statistics import Normalization, Statistics, normalise, unnormalise

Part = Literal["state", "action"]
WORDS: Final = "words"
"""Tokenizer of small random networks that no other belongs to: words are hashed."""


@dataclass(frozen=True, kw_only=True)
class FlowShape:
    """Everything that decides the network's tensors and what it computes from them, heads for learning aside."""

    expert: GemmaShape
    """The stream that denoises actions."""
    horizon: int = 50
    """H, actions predicted at once in training."""
    action_width: int = 32
    """D, numbers per action, padding included."""
    state_width: int = 32
    """Numbers of the state, padding included."""
    min_period: float = 4e-3
    """Shortest period of the time embedding."""
    max_period: float = 4.0
    """Longest period of the time embedding."""

    may_be_zero: ClassVar[tuple[str, ...]] = ()
    """Numbers that need not be above 0."""

    def __post_init__(self) -> None:
        check_positive(self, but=self.may_be_zero)

    @property
    @abstractmethod
    def image_size(self) -> int:
        """Side of the images, pixels."""

    @property
    @abstractmethod
    def vlm_width(self) -> int:
        """Width of the stream that reads images and text."""


def check_streams(vlm: GemmaShape, expert: GemmaShape, names: Sequence[str], word: str) -> None:
    """Refuse streams that cannot attend to each other; `word` is the VLM's in messages."""
    for name in names:
        if getattr(vlm, name) != getattr(expert, name):
            raise BadValue(
                f"the streams share attention: {name} must be equal, "
                f"got {getattr(vlm, name)} ({word}) and {getattr(expert, name)} (expert)"
            )


@dataclass(frozen=True, kw_only=True)
class FlowPreprocessing:
    """Preprocessing and postprocessing: properties of a checkpoint."""

    state: Statistics | None = None
    """Statistics of the proprioceptive vector; None = not normalised."""
    action: Statistics | None = None
    """Statistics of an action; None = not normalised."""
    data_set: str | None = None
    """Name of the data set that the statistics are of, where it is known."""
    max_tokens: int = 48
    """Length of the text, tokens; longer ones are cut."""
    tokenizer: str = WORDS
    """Name of the tokenizer."""
    normalization: Normalization = "mean_std"
    """Statistics in use, for state and action alike."""

    @property
    def epsilons(self) -> tuple[float, float]:
        """Added to the divisor when normalising, and to the factor when going back."""
        return (1e-8 if self.normalization == "mean_std" else 0.0), 0.0

    def statistics(self, part: Part) -> Statistics | None:
        """Statistics in use of `state` or `action`."""
        return getattr(self, part)

    def normalise(self, x: Tensor, part: Part) -> Tensor:
        """Units of the data `[..., A]` to the network's."""
        return normalise(x, self.statistics(part), self.normalization, self.epsilons[0])

    def unnormalise(self, x: Tensor, part: Part) -> Tensor:
        """The network's units `[..., A]` to those of the data."""
        return unnormalise(x, self.statistics(part), self.normalization, self.epsilons[1])


@dataclass(frozen=True, kw_only=True)
class FlowLearning:
    """Heads and trainable parts."""

    value_feature: Literal["state", "expert", "prefix"] = "expert"
    """The critic's input: the mean over the expert's tokens at t = 1 and x = 0, or over the VLM's hidden states. Either
    is a function of the observation alone, the same in rollout and update."""
    value_hidden: tuple[int, ...] = (512, 256, 128)
    """Hidden features of the critic; 1024, 512, 256 is published for pi0.5 on LIBERO and ManiSkill."""
    detach_value: bool = True
    """Whether the critic's gradient stops at its input."""
    noise_hidden: tuple[int, ...] = (128, 64)
    """Hidden features of Flow-Noise's network."""
    train_expert_only: bool = True
    """Freeze the VLM: its pass then keeps no activations."""
    recompute_activations: bool | None = None
    """Keep only the layers' inputs while training and run the layers again in the backward pass. None: on a GPU where
    memory asks for it."""
    cache_features: float | None = None
    """GiB of prefixes (keys and values of the frozen VLM) kept from acting for the epochs of an update; 0 = none. None:
    PPO and GRPO keep as many as free memory allows."""
    vlm_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the VLM's weights: "auto" is bfloat16 for a frozen VLM on a GPU, else float32. The expert and the
    heads stay in float32."""

    def __post_init__(self) -> None:
        check_gib(self.cache_features)
        if min(self.value_hidden, default=0) < 1 or min(self.noise_hidden, default=0) < 1:
            raise BadValue(
                "value_hidden and noise_hidden need at least one number each, all above 0, got "
                f"{list(self.value_hidden)} and {list(self.noise_hidden)}"
            )
        if not self.train_expert_only and (self.cache_features or self.vlm_dtype == "bfloat16"):
            raise BadValue("cache_features and vlm_dtype: bfloat16 are for a frozen VLM (train_expert_only: true)")


@dataclass(frozen=True, kw_only=True)
class VLMFlowConfig:
    """Config of one checkpoint; nested objects in its `config.json`."""

    title: ClassVar[str]
    """The family in messages."""
    settable: ClassVar[tuple[str, ...]] = ()
    """Preprocessing that a user may change."""

    network: FlowShape
    preprocessing: FlowPreprocessing
    learning: FlowLearning
    flow: FlowSettings

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """The same with single settings changed by name: those of `flow` and `learning`, and the `settable` ones."""
        parts = {name: getattr(self, name) for name in ("flow", "learning", "preprocessing")}
        own = {name: [item.name for item in fields(part)] for name, part in parts.items()}
        own["preprocessing"] = list(self.settable)
        names = [name for part in own.values() for name in part]
        for key in options:
            if key not in names:
                raise unknown_name(f"option of a {self.title} checkpoint", key, names)
        new = {
            name: changed(part, {key: value for key, value in options.items() if key in own[name]}, "backbone_kwargs")
            for name, part in parts.items()
        }
        return replace(self, **new)

    def with_tokenizer(self, name: str) -> Self:
        """The same with another tokenizer."""
        return replace(self, preprocessing=replace(self.preprocessing, tokenizer=name))
