"""The config of a pi0 or pi0.5 checkpoint: sizes, preprocessing, reinforcement learning. Plain data.

The two families share all code; their differences are in `FULL`, and in `Pi0Backbone.adaptive_norm`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from vla_policies.actions.flow import FlowSettings
from vla_policies.modules.streams import GemmaShape
from vla_policies.vlm_flow.config import (
    WORDS,
    FlowLearning,
    FlowPreprocessing,
    FlowShape,
    VLMFlowConfig,
    check_streams,
)


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
class NetworkShape(FlowShape):
    """Sizes of the network."""

    vision: VisionShape = field(default_factory=VisionShape)
    """SigLIP."""
    vlm: GemmaShape = VARIANTS["gemma_2b"]
    """The stream that reads images and text."""
    expert: GemmaShape = VARIANTS["gemma_300m"]
    """The stream that denoises actions."""
    vocab_size: int = 257152
    """Rows of the token embedding."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_streams(self.vlm, self.expert, ("depth", "num_heads", "num_kv_heads", "head_dim"), "vlm")

    @property
    def image_size(self) -> int:
        return self.vision.image_size

    @property
    def vlm_width(self) -> int:
        return self.vlm.width


@dataclass(frozen=True, kw_only=True)
class Preprocessing(FlowPreprocessing):
    """Preprocessing and postprocessing: properties of a checkpoint."""

    epsilon: float = 0.0
    """Added to the divisor when normalising and, with `epsilon_back`, when going back (openpi 1e-6, lerobot 1e-8)."""
    epsilon_back: bool = False
    """openpi adds its epsilon both ways."""
    delta_dims: int = 0
    """The first so many dims of an action are relative to the state at the decision (openpi's pi0_libero: 6)."""
    binarize_gripper: bool = False
    """The last number of an action opens the gripper (+1) above 0.5 and closes it (-1) else (RLinf on the WidowX)."""
    prompt_state: Literal["none", "exact", "padded"] = "none"
    """The state in the text: absent, unpadded (openpi's pi0.5), or padded (lerobot's)."""
    resize: Literal["pil", "torch"] = "torch"
    """Resize of images: PIL's bilinear on bytes (openpi's clients) or torch's on floats (lerobot)."""
    tokenizer: Literal["paligemma", "words"] = "paligemma"
    """"words" hashes words, for small random networks that no tokenizer belongs to."""

    @property
    def epsilons(self) -> tuple[float, float]:
        return self.epsilon, self.epsilon if self.epsilon_back else 0.0


@dataclass(frozen=True, kw_only=True)
class Pi0Config(VLMFlowConfig):
    """Config of one checkpoint."""

    title: ClassVar[str] = "pi0"
    settable: ClassVar[tuple[str, ...]] = ("delta_dims", "binarize_gripper", "prompt_state", "resize")
    """Some fine-tunes change these without a record in their files."""

    network: NetworkShape
    preprocessing: Preprocessing


FULL: dict[str, Pi0Config] = {
    "pi0": Pi0Config(
        network=NetworkShape(), preprocessing=Preprocessing(), learning=FlowLearning(), flow=FlowSettings()
    ),
    "pi05": Pi0Config(
        network=NetworkShape(),
        preprocessing=Preprocessing(normalization="quantiles", prompt_state="exact", max_tokens=200),
        learning=FlowLearning(value_feature="prefix", value_hidden=(1024, 512, 256)),
        flow=FlowSettings(),
    ),
}
"""Family -> its published sizes, normalisation, text and critic."""


def tiny_config(family: str) -> Pi0Config:
    """A few hundred thousand parameters, random weights, hashed words: for tests and trials without a download."""
    heads = {"depth": 2, "num_heads": 4, "head_dim": 16}
    full = FULL[family]
    return replace(
        full,
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
        preprocessing=replace(full.preprocessing, tokenizer=WORDS),
        learning=replace(full.learning, value_hidden=(64, 32)),
    )
