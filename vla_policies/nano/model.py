"""The nano network: blocks over image, sentence and state give the context of K action queries and a value query."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_gym.errors import BadValue
from vla_policies.actions.sampling import UniformBins
from vla_policies.backbone import Backbone, BackboneOutput, TokenBackbone
from vla_policies.checkpoint_io.json_records import from_json
from vla_policies.checkpoint_io.weights import load_weights
from vla_policies.conventions import Conventions
from vla_policies.devices import upload
from vla_policies.modules.feature_cache import GIB, FeatureCache
from vla_policies.nano.config import LEARNING_OPTIONS, NanoConfig, config_from_options, fit_image_size
from vla_policies.nano.layers import (
    ActionHead,
    Block,
    ContrastVisionStem,
    DeepVisionStem,
    PretrainedEmbedding,
    PrivilegedHead,
    QueryBlock,
    ValueHead,
    VisionStem,
    WordEmbedding,
    mlp,
    state_codes,
)
from vla_policies.processing.observations import channels_last, decode_instructions
from vla_policies.types import PolicyInputs, is_padded

KEPT_BYTES = GIB
"""Largest size of the kept encodings where the encoder is not trained; one of an image of `tiny` has 28 KB."""

_log = logging.getLogger(__name__)

STEMS: Mapping[str, type[VisionStem]] = {
    "shallow": VisionStem,
    "deep": DeepVisionStem,
    "contrast": ContrastVisionStem,
}


@dataclass(frozen=True)
class Encoding:
    """B encoded observations."""

    context_BLD: Tensor
    """Tokens of sentence, images and state after the blocks."""
    text_mask_BL: Tensor
    """True where a word is real, on the CPU; the words are the first tokens of the context."""
    points_BD: Tensor
    """Points in the images, as features."""
    places_BD: Tensor
    """These and the arm's state, as features that are added to every query."""

    def mask(self, before: int) -> Tensor | None:
        """Attention mask of `before` queries followed by the context, bool `[B, 1, 1, before + L]`."""
        length = before + self.context_BLD.shape[1]
        return _attention_mask(self.text_mask_BL, before=before, length=length, device=self.context_BLD.device)

    def detached(self) -> Encoding:
        """The same without gradients."""
        return Encoding(self.context_BLD.detach(), self.text_mask_BL, self.points_BD.detach(), self.places_BD.detach())


class NanoEncoder(nn.Module):
    """Encoders and blocks of the nano families, and of the critics that read an observation as they do."""

    conventions: Conventions

    def build_encoders(self, conventions: Conventions, config: NanoConfig) -> None:
        """Build embeddings and stems; raises `BadValue` when the image does not divide into the grid."""
        if conventions.image_size % (4 * config.grid):
            raise BadValue(
                f"nano with grid {config.grid} needs an image size that divides by {4 * config.grid}, "
                f"got {conventions.image_size}"
            )
        width, cameras = config.width, len(conventions.cameras)
        self.words = WordEmbedding(width) if config.words == "hashed" else PretrainedEmbedding(width)
        self.sentence_norm = nn.LayerNorm(width)
        self.vision = STEMS[config.eye](width, config.grid, config.points, conventions.image_size)
        self.camera = nn.Parameter(0.02 * torch.randn(cameras, 1, width))
        self.points = nn.Linear(2 * config.points * cameras, width)
        codes = state_codes(torch.zeros(1, conventions.state_dim)).shape[1]
        self.state = mlp(codes, width, width) if conventions.state_dim else None

    def build_blocks(self, config: NanoConfig) -> None:
        """Build the blocks over all tokens."""
        shape = (config.width, config.heads, config.mlp_ratio)
        self.blocks = nn.ModuleList(Block(*shape) for _ in range(config.depth))

    def prepare(self, obs: Mapping[str, Tensor]) -> PolicyInputs:
        """Tensors of B observations, images `[B, H, W, 3]` or `[B, 3, H, W]` uint8, to `PolicyInputs`.

        Columns of the text in which every row is padding are left out.
        """
        conventions = self.conventions
        pixels = [_pixels(obs[key], conventions.image_size, key) for key in conventions.cameras]
        text_BL, mask_BL = self.words.read(decode_instructions(obs["instruction"]))
        device = pixels[0].device
        return PolicyInputs(
            pixels_BMCHW=pixels[0].unsqueeze(1) if len(pixels) == 1 else torch.stack(pixels, dim=1),
            text_BL=upload(text_BL, device),
            text_mask_BL=mask_BL,
            state_BS=upload(obs["state"].float(), device) if conventions.state_dim else None,
        ).trimmed()

    def encode_observation(self, inputs: PolicyInputs) -> Encoding:
        """One pass over words, images and state; none where the encoding is kept."""
        if inputs.features is None:
            return self._encode(inputs)
        context_BLD, points_BD, places_BD = inputs.features
        return Encoding(context_BLD, inputs.text_mask_BL, points_BD, places_BD)

    def _encode(self, inputs: PolicyInputs) -> Encoding:
        text_BL, text_mask_BL = inputs.text_BL, inputs.text_mask_BL
        words_BLD = self.words(text_BL)
        sentence_BD = self._sentence(words_BLD, text_mask_BL)
        image_tokens, points_BP = self._encode_images(inputs.pixels_BMCHW.to(words_BLD.dtype), sentence_BD)
        tokens = [words_BLD, *image_tokens]
        # Added to the queries too: a short path from where things are to where the arm goes.
        places_BD = points_BD = self.points(points_BP)
        if self.state is not None:
            assert inputs.state_BS is not None
            state_BD = self.state(state_codes(inputs.state_BS).to(words_BLD.dtype))
            tokens.append(state_BD[:, None])
            places_BD = places_BD + state_BD
        context_BLD = torch.cat(tokens, dim=1)
        mask_B11L = _attention_mask(text_mask_BL, before=0, length=context_BLD.shape[1], device=context_BLD.device)
        for block in self.blocks:
            context_BLD = block(context_BLD, mask_B11L)
        return Encoding(context_BLD, text_mask_BL, points_BD, places_BD)

    def _sentence(self, words_BLD: Tensor, mask_BL: Tensor) -> Tensor:
        weight = upload(mask_BL[..., None].to(words_BLD.dtype), words_BLD.device)
        return self.sentence_norm((words_BLD * weight).sum(dim=1) / weight.sum(dim=1))

    def _encode_images(self, pixels_BMCHW: Tensor, sentence_BD: Tensor) -> tuple[list[Tensor], Tensor]:
        encoded = [self.vision(pixels_BMCHW[:, m], sentence_BD) for m in range(pixels_BMCHW.shape[1])]
        tokens = [tokens_BLD + camera for (tokens_BLD, _), camera in zip(encoded, self.camera, strict=True)]
        return tokens, torch.cat([points_BP for _, points_BP in encoded], dim=1)


class NanoTrunk(NanoEncoder, Backbone):
    """Base of the nano families: encodes observations, and keeps the encodings where the encoder is frozen."""

    default_conventions: ClassVar[Conventions] = Conventions(
        cameras=("image",), image_size=128, state_dim=8, chunk=8, action_dim=7
    )

    features_have_texts_length = True

    def build_blocks(self, config: NanoConfig) -> None:
        super().build_blocks(config)
        self._encoder_frozen = config.freeze_encoder
        if config.freeze_encoder:
            for part in (
                self.words,
                self.sentence_norm,
                self.vision,
                self.points,
                self.camera,
                self.state,
                self.blocks,
            ):
                if part is not None:
                    part.requires_grad_(False)
            _keep_encodings(self)
            # Loaded weights make other encodings.
            self.register_load_state_dict_post_hook(_keep_encodings)

    @classmethod
    def with_options(cls, model: Mapping[str, Any], options: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        learning = {key: value for key, value in options.items() if key in LEARNING_OPTIONS}
        model = super().with_options(model, {key: options[key] for key in options if key not in learning}, where)
        if "trunk" in model:
            return {**model, "trunk": {**model["trunk"], **learning}}
        return {**model, **learning}

    def load(self, folder: Path, beside: Sequence[Path] = ()) -> None:
        load_weights(folder, self, but=self._new_parts)

    def _new_parts(self, saved: Mapping[str, Tensor]) -> tuple[str, ...]:
        parts = []
        if isinstance(self.words, WordEmbedding) != ("words.high.weight" in saved):
            _log.warning("the policy's words begin anew: it knows none before it has learned them")
            parts.append("words.")
        head, old = getattr(self, "privileged", None), saved.get("privileged.mean_P")
        if head is not None and (old is None or head.mean_P.shape != old.shape):
            _log.warning("the policy's head that tells where things are begins anew")
            parts.append("privileged.")
        return tuple(parts)

    @contextmanager
    def critic_trained_alone(self) -> Iterator[None]:
        if self._encoder_frozen:
            yield
            return
        _keep_encodings(self)
        try:
            yield
        finally:
            self.kept = None

    def features(self, inputs: PolicyInputs) -> tuple[Tensor, ...]:
        made = self._encode(inputs)
        return made.context_BLD, made.points_BD, made.places_BD


class NanoBackbone(NanoTrunk, TokenBackbone):
    """A small VLA: 256 bins per action dim, the whole chunk decoded in one pass."""

    family: ClassVar[str] = "nano"

    def __init__(self, conventions: Conventions, config: NanoConfig) -> None:
        codec = UniformBins()
        super().__init__(conventions, codec)
        self.config = config
        width = config.width
        self.build_encoders(conventions, config)
        self.action_queries = nn.Parameter(0.02 * torch.randn(conventions.chunk, width))
        self.build_blocks(config)
        shape = (width, config.heads, config.mlp_ratio)
        self.readers = nn.ModuleList(QueryBlock(*shape) for _ in range(config.readers))
        self.action_head = ActionHead(
            width,
            conventions.action_dim,
            codec,
            features=config.bin_features,
            smoothness=config.bin_smoothness,
            initial_std=config.initial_std,
        )
        self.value_reader = QueryBlock(*shape) if config.critic == "own" else None
        self.value_head = ValueHead(width)
        self.privileged = PrivilegedHead(width, config.privileged_dim) if config.privileged_dim else None

    @classmethod
    def fresh(cls, conventions: Conventions, options: Mapping[str, Any]) -> Self:
        config = config_from_options(options, conventions.image_size)
        return cls(replace(conventions, image_size=fit_image_size(conventions.image_size, config.grid)), config)

    @classmethod
    def from_config(cls, conventions: Conventions, config: Mapping[str, Any], where: str) -> Self:
        return cls(conventions, from_json(NanoConfig, config, where))

    def value_parameters(self) -> Iterator[nn.Parameter]:
        if self.value_reader is not None:
            yield from self.value_reader.parameters()
        yield from self.value_head.parameters()

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        # Action queries attend to the query of a shared critic.
        shared = self.value_reader is None
        return (p for p in self.value_parameters() if not (shared and p is self.value_head.query))

    def forward(self, inputs: PolicyInputs) -> BackboneOutput:
        encoding = self.encode_observation(inputs)
        # Not of the arm's state: an expert goes straight to its thing, so the hand's place would tell the thing's.
        privileged_BP = None if self.privileged is None else self.privileged(encoding.points_BD)
        if self.value_reader is not None:
            hidden_BKD = attend(self.action_queries, encoding, self.readers)
            value_BD = attend(self.value_head.query, encoding.detached(), [self.value_reader])[:, 0]
        else:
            x_BQD = attend(torch.cat([self.action_queries, self.value_head.query]), encoding, self.readers)
            hidden_BKD, value_BD = x_BQD[:, :-1], x_BQD[:, -1]
        return BackboneOutput(self.action_head(hidden_BKD), self.value_head(value_BD), privileged_BP=privileged_BP)


def _pixels(image: Tensor, size: int, key: str) -> Tensor:
    """Uint8 images to float32 `[B, 3, size, size]` in [-1, 1], averaged down or interpolated up."""
    pixels = channels_last(image, key).permute(0, 3, 1, 2).float().mul_(1.0 / 127.5).sub_(1.0)
    if pixels.shape[2:] != (size, size):
        pixels = functional.interpolate(pixels, (size, size), mode="bilinear", antialias=True)
    return pixels


def _keep_encodings(trunk: NanoTrunk, *_: object) -> None:
    trunk.kept = FeatureCache(KEPT_BYTES)


def attend(queries_QD: Tensor, encoding: Encoding, readers: Iterable[nn.Module]) -> Tensor:
    """Queries after they have attended to an observation, `[B, Q, width]`."""
    mask_B11L = encoding.mask(before=len(queries_QD))
    x_BQD = queries_QD + encoding.places_BD[:, None]
    for reader in readers:
        x_BQD = reader(x_BQD, encoding.context_BLD, mask_B11L)
    return x_BQD


def _attention_mask(text_mask_BL: Tensor, *, before: int, length: int, device: torch.device) -> Tensor | None:
    """Mask of all tokens but padding, bool `[B, 1, 1, length]`; None, which is faster, where nothing is padding."""
    if not is_padded(text_mask_BL):
        return None
    mask_BL = torch.ones(len(text_mask_BL), length, dtype=torch.bool, device=text_mask_BL.device)
    mask_BL[:, before : before + text_mask_BL.shape[1]] = text_mask_BL
    return upload(mask_BL[:, None, None], device)
