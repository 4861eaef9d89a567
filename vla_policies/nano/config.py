"""Config of a nano model, part of a checkpoint's `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vla_gym.errors import BadValue, unknown_name
from vla_policies.checkpoint_io.folder import check_positive
from vla_policies.checkpoint_io.json_records import from_json

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"width": 96, "heads": 3, "depth": 1, "readers": 1},
    "small": {"width": 192, "heads": 6, "depth": 2, "readers": 2},
    "base": {"width": 320, "heads": 10, "depth": 4, "readers": 3},
}
"""Presets of about 0.5, 2.5 and 9.3 million parameters."""

MOST_PARAMETERS = 10**9
"""Largest number of parameters of the blocks together, 4 GB in float32."""

LEARNING_OPTIONS = ("freeze_encoder", "words", "privileged_dim")
"""Fields that may be set for a checkpoint, whose others are those that it was made with. Other `words` than the
checkpoint's, and a head of another length, begin anew."""


@dataclass(frozen=True, kw_only=True)
class NanoConfig:
    """Settings of the network beside the conventions (cameras, chunk, ...)."""

    width: int
    """Features of every token."""
    heads: int
    """Attention heads; divides `width`."""
    depth: int
    """Blocks over image, sentence and state."""
    readers: int
    """Blocks in which the action and value queries attend to that context."""
    grid: int
    """An image of any size becomes grid x grid tokens; its side is a multiple of 4 * grid."""
    mlp_ratio: int = 3
    """Hidden features of a block's MLP, over `width`."""
    points: int = 32
    """Points of each image whose coordinates are added to every query."""
    bin_features: int = 48
    """Length of the vectors whose dot product is a bin's logit; even."""
    bin_smoothness: float = 0.6
    """Initial reach, in action units, over which neighbouring bins share gradients."""
    initial_std: float = 1.0
    """Spread of the first actions: a Gaussian of this standard deviation around 0, cut at -1 and 1."""
    critic: Literal["shared", "own"] = "shared"
    """"shared": the value query goes through the action queries' blocks, so values shape the trunk, which helps from
    fresh weights. "own": it has a block of its own and its gradient stops at the trunk, so that learning values
    cannot spoil a policy trained on demonstrations."""
    eye: Literal["shallow", "deep", "contrast"] = "shallow"
    """"shallow": points come from a map of 2 * grid cells a side. "deep": from one of 4 * grid cells a side, after a
    residual block; twice the work. "contrast": as deep, with instance normalisation of images and of the points'
    maps, so that small and dark things are found, and found sooner; a quarter more work."""
    words: Literal["hashed", "wordllama"] = "hashed"
    """"hashed": a vector for each word, learned from nothing; words that were not taught mean nothing. "wordllama": a
    learned projection of WordLlama's frozen vectors, in which words of like meaning are close (extra `words`)."""
    privileged_dim: int = 0
    """Numbers of the privileged vector that a head predicts from the points while fine-tuning (`Benchmark.places`);
    0 = no such head."""
    freeze_encoder: bool = False
    """Whether all that makes tokens of an observation (embeddings, stem, blocks) stays as it is, so that readers and
    heads alone are trained. An observation is then encoded once, when it is acted on, for all passes of an update."""

    def __post_init__(self) -> None:
        check_positive(self, but=("privileged_dim", "freeze_encoder"))
        blocks = (self.depth + self.readers) * self.width**2 * (4 + 2 * self.mlp_ratio)
        if blocks > MOST_PARAMETERS:
            raise BadValue(f"nano's blocks must have at most {MOST_PARAMETERS} parameters, these would have {blocks}")
        if self.width % self.heads or self.width % 4 or self.bin_features % 2:
            raise BadValue(
                "nano's width must divide by heads and by 4, and bin_features must be even, got "
                f"width {self.width}, {self.heads} heads and bin_features {self.bin_features}"
            )


def config_from_options(options: Mapping[str, Any], image_size: int) -> NanoConfig:
    """`size: small` (default) with single fields over it; unknown names raise.

    The grid follows the image unless given: 8 pixels or more to a token, at most 8 x 8 tokens.
    """
    size = options.get("size", "small")
    if not isinstance(size, str) or size not in SIZES:
        raise unknown_name("size of nano", str(size), SIZES)
    grid = min(8, max(1, image_size // 8))
    own = {key: value for key, value in options.items() if key != "size"}
    return from_json(NanoConfig, {**SIZES[size], "grid": grid, **own}, "backbone_kwargs of nano")


def fit_image_size(image_size: int, grid: int) -> int:
    """Side of nano's images for those of `image_size`: the next smaller multiple of 4 * grid."""
    multiple = 4 * grid
    return max(multiple, image_size // multiple * multiple)
