"""What every nano family has: picture, sentence and state, mixed into one context that its heads read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vla_gym.errors import BadValue
from vla_policies.conventions import Conventions
from vla_policies.nano.config import NanoConfig
from vla_policies.nano.layers import Block, VisionStem, WordEmbedding, state_codes
from vla_policies.types import PolicyInputs


@dataclass(frozen=True)
class Reading:
    """An observation, read."""

    context_BLD: Tensor
    """Tokens of sentence, pictures and state after the blocks."""
    text_mask_BL: Tensor
    """True where a word is real; the words are the first tokens of the context."""
    places_BD: Tensor
    """Places in the pictures and the arm's own, as features that every query gets."""

    def mask(self, before: int) -> Tensor | None:
        """Which of `before` queries followed by the context may be attended to, `[B, 1, 1, before + L]`."""
        return _attention_mask(self.text_mask_BL, before=before, length=before + self.context_BLD.shape[1])

    def detached(self) -> Reading:
        """The same, at which gradients stop."""
        return Reading(self.context_BLD.detach(), self.text_mask_BL, self.places_BD.detach())


class NanoTrunk(nn.Module):
    """Mixed into a backbone: builds the senses and blocks, and reads observations with them."""

    def build_senses(self, conventions: Conventions, config: NanoConfig) -> None:
        """Embeddings and stems; raises `BadValue` when the image does not divide into the grid."""
        if conventions.image_size % (4 * config.grid):
            raise BadValue(
                f"nano with grid {config.grid} needs an image size that divides by {4 * config.grid}, "
                f"got {conventions.image_size}"
            )
        width, cameras = config.width, len(conventions.cameras)
        self.words = WordEmbedding(width)
        self.sentence_norm = nn.LayerNorm(width)
        self.vision = VisionStem(width, config.grid, config.points, conventions.image_size)
        self.camera = nn.Parameter(0.02 * torch.randn(cameras, 1, width))
        self.points = nn.Linear(2 * config.points * cameras, width)
        self.state = _state_mlp(conventions.state_dim, width) if conventions.state_dim else None

    def build_blocks(self, config: NanoConfig) -> None:
        """The blocks that mix the senses."""
        shape = (config.width, config.heads, config.mlp_ratio)
        self.blocks = nn.ModuleList(Block(*shape) for _ in range(config.depth))

    def read_observation(self, inputs: PolicyInputs) -> Reading:
        """One pass over words, pictures and state."""
        text_BL, text_mask_BL = _drop_empty_columns(inputs.text_BL, inputs.text_mask_BL)
        words_BLD = self.words(text_BL)
        sentence_BD = self._sentence(words_BLD, text_mask_BL)
        pictures, points_BP = self._see(inputs.pixels_BMCHW.to(words_BLD.dtype), sentence_BD)
        tokens = [words_BLD, *pictures]
        # Queries get these directly as well: a short way from where things are to where the arm goes.
        places_BD = self.points(points_BP)
        if self.state is not None:
            assert inputs.state_BS is not None
            state_BD = self.state(state_codes(inputs.state_BS).to(words_BLD.dtype))
            tokens.append(state_BD[:, None])
            places_BD = places_BD + state_BD
        context_BLD = torch.cat(tokens, dim=1)
        mask_B11L = _attention_mask(text_mask_BL, before=0, length=context_BLD.shape[1])
        for block in self.blocks:
            context_BLD = block(context_BLD, mask_B11L)
        return Reading(context_BLD, text_mask_BL, places_BD)

    def _sentence(self, words_BLD: Tensor, mask_BL: Tensor) -> Tensor:
        """The mean word, normalised, `[B, width]`."""
        weight = mask_BL[..., None].to(words_BLD.dtype)
        sentence_BD: Tensor = self.sentence_norm((words_BLD * weight).sum(dim=1) / weight.sum(dim=1))
        return sentence_BD

    def _see(self, pixels_BMCHW: Tensor, sentence_BD: Tensor) -> tuple[list[Tensor], Tensor]:
        """Tokens of each camera and the points of all, through one stem."""
        seen = [self.vision(pixels_BMCHW[:, m], sentence_BD) for m in range(pixels_BMCHW.shape[1])]
        tokens = [tokens_BLD + camera for (tokens_BLD, _), camera in zip(seen, self.camera, strict=True)]
        return tokens, torch.cat([points_BP for _, points_BP in seen], dim=1)


def _state_mlp(state_dim: int, width: int) -> nn.Module:
    inputs = state_codes(torch.zeros(1, state_dim)).shape[1]
    return nn.Sequential(nn.Linear(inputs, width), nn.GELU(approximate="tanh"), nn.Linear(width, width))


def _drop_empty_columns(text_BL: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Cut the right end that is padding in every row: the masked result is the same, the work less."""
    length = int(mask_BL.sum(dim=1).max())
    return text_BL[:, :length], mask_BL[:, :length]


def _attention_mask(text_mask_BL: Tensor, *, before: int, length: int) -> Tensor | None:
    """Every token sees all but padding, `[B, 1, 1, length]`; None, which is faster, without padding."""
    if bool(text_mask_BL.all()):
        return None
    mask_BL = torch.ones(len(text_mask_BL), length, dtype=torch.bool, device=text_mask_BL.device)
    mask_BL[:, before : before + text_mask_BL.shape[1]] = text_mask_BL
    return mask_BL[:, None, None]
