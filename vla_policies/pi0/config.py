"""The config of a pi0 or pi0.5 checkpoint: sizes, preprocessing, reinforcement learning. Plain data.

The two families share all code; their differences are in `TRAITS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vla_gym.errors import BadValue, unknown_name
from vla_policies.actions.flow import FlowSettings
from vla_policies.checkpoint_io.json_records import from_json, to_json
from vla_policies.modules.gemma import GemmaShape
from vla_policies.processing.statistics import Statistics
from vla_policies.vlm_flow_backbone import FlowLearning, with_options


@dataclass(frozen=True, kw_only=True)
class VisionShape:
    """SigLIP: fields of transformers' `SiglipVisionConfig`; all blocks are used."""

    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_hidden_layers: int = 27
    num_attention_heads: int = 16
    patch_size: int = 14
    image_size: int = 224


VARIANTS: dict[str, GemmaShape] = {
    "gemma_300m": GemmaShape(width=1024, mlp_dim=4096, depth=18),
    "gemma_2b": GemmaShape(width=2048, mlp_dim=16384, depth=18),
}
"""openpi's names for the sizes of its two streams."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Differences between the two families."""

    adaptive_norm: bool
    """Time enters through the expert's norms, and there is no state token (pi0.5)."""
    max_tokens: int
    """Length of the text, tokens; longer texts are cut, as in the originals."""
    normalization: Literal["mean_std", "quantiles"]
    """Normalisation of states and actions."""
    value_feature: Literal["expert", "prefix"]
    """Input of the published critic."""


TRAITS: dict[str, Traits] = {
    "pi0": Traits(adaptive_norm=False, max_tokens=48, normalization="mean_std", value_feature="expert"),
    "pi05": Traits(adaptive_norm=True, max_tokens=200, normalization="quantiles", value_feature="prefix"),
}


@dataclass(frozen=True, kw_only=True)
class NetworkShape:
    """Everything that decides the network's tensors, heads for learning aside."""

    vision: VisionShape = field(default_factory=VisionShape)
    """SigLIP."""
    vlm: GemmaShape = VARIANTS["gemma_2b"]
    """The stream that reads images and text."""
    expert: GemmaShape = VARIANTS["gemma_300m"]
    """The stream that denoises actions."""
    vocab_size: int = 257152
    """Rows of the token embedding."""
    horizon: int = 50
    """H, actions predicted at once."""
    action_width: int = 32
    """D, numbers per action, padding included."""
    state_width: int = 32
    """Numbers of the state, padding included (pi0)."""
    min_period: float = 4e-3
    """Shortest period of the time embedding."""
    max_period: float = 4.0
    """Longest period of the time embedding."""

    def __post_init__(self) -> None:
        for name in ("depth", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(self.vlm, name) != getattr(self.expert, name):
                raise BadValue(
                    f"the streams share attention: {name} must be equal, "
                    f"got {getattr(self.vlm, name)} (vlm) and {getattr(self.expert, name)} (expert)"
                )


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Preprocessing and postprocessing: properties of a checkpoint."""

    normalization: Literal["mean_std", "quantiles"] = "mean_std"
    """Statistics in use, for state and action alike."""
    epsilon: float = 0.0
    """Added to the divisor when normalising and, with `epsilon_back`, when going back (openpi 1e-6, lerobot 1e-8)."""
    epsilon_back: bool = False
    """openpi adds its epsilon both ways."""
    state: Statistics | None = None
    """Of the proprioceptive vector; None = not normalised."""
    action: Statistics | None = None
    """Of an action; None = not normalised."""
    delta_dims: int = 0
    """The first so many dims of an action are relative to the state at the decision (openpi's pi0_libero: 6)."""
    prompt_state: Literal["none", "exact", "padded"] = "none"
    """The state in the text: absent, unpadded (openpi's pi0.5), or padded (lerobot's)."""
    max_tokens: int = 48
    """Length of the text, tokens."""
    resize: Literal["pil", "torch"] = "torch"
    """Resize of images: PIL's bilinear on bytes (openpi's clients) or torch's on floats (lerobot)."""
    tokenizer: Literal["paligemma", "words"] = "paligemma"
    """"words" hashes words, for small random networks that no tokenizer belongs to."""


SETTABLE = ("delta_dims", "prompt_state", "resize")
"""Preprocessing that some fine-tunes change without a record in their files."""


@dataclass(frozen=True, kw_only=True)
class Learning(FlowLearning):
    """Heads and trainable parts."""

    value_feature: Literal["expert", "prefix"] = "expert"
    """The critic's input: the mean over the expert's tokens at t = 1 and x = 0, or over the VLM's hidden states.
    Either is a function of the observation alone, the same in rollout and update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value_feature not in ("expert", "prefix"):
            raise unknown_name("value_feature", str(self.value_feature), ("expert", "prefix"))


@dataclass(frozen=True, kw_only=True)
class Pi0Config:
    """Config of one checkpoint; nested objects in its `config.json`."""

    network: NetworkShape
    preprocessing: Preprocessing
    learning: Learning
    flow: FlowSettings

    def to_json(self) -> dict[str, Any]:
        return to_json(self)

    def with_options(self, options: Mapping[str, Any]) -> Pi0Config:
        """The same with single settings changed by name: those of `flow` and `learning`, and `SETTABLE`."""
        return with_options(self, options, SETTABLE, "pi0")


def config_from_json(values: Mapping[str, Any], where: str) -> Pi0Config:
    """Inverse of `Pi0Config.to_json`; unknown or absent keys raise and are named."""
    return from_json(Pi0Config, values, where)


def tiny_config(family: str) -> Pi0Config:
    """A few hundred thousand parameters, random weights, hashed words: for tests and trials without a download."""
    traits = TRAITS[family]
    heads = {"depth": 2, "num_heads": 4, "head_dim": 16}
    return Pi0Config(
        network=NetworkShape(
            vision=VisionShape(
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                image_size=56,
            ),
            vlm=GemmaShape(width=64, mlp_dim=128, **heads),
            expert=GemmaShape(width=48, mlp_dim=96, **heads),
            vocab_size=1024,
            horizon=10,
        ),
        preprocessing=Preprocessing(
            normalization=traits.normalization,
            prompt_state="exact" if traits.adaptive_norm else "none",
            max_tokens=traits.max_tokens,
            tokenizer="words",
        ),
        learning=Learning(value_feature=traits.value_feature, value_hidden=(64, 32)),
        flow=FlowSettings(),
    )
