"""The parts of nano: a convolutional stem conditioned on the sentence, transformer blocks, two heads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from vla_policies.actions.sampling import UniformBins
from vla_policies.processing.observations import (
    HALF_BITS,
    MAX_TOKENS,
    WORD_DIMS,
    pad_ids,
    tokenize,
    word_vectors,
    wordllama_folder,
)

SMALLEST_STD = 1e-3
"""Smallest standard deviation of a privileged number that varies, metres or radians."""


class Block(nn.Module):
    """Pre-norm transformer block over `[B, L, width]`."""

    def __init__(self, width: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = mlp(width, mlp_ratio * width, width)

    def forward(self, x_BLD: Tensor, mask_B11L: Tensor | None) -> Tensor:
        """`mask_B11L` is True where a token may be attended to; None = everywhere."""
        query, key, value = self.qkv(self.norm1(x_BLD)).chunk(3, dim=-1)
        x_BLD = x_BLD + self.proj(_attend(query, key, value, mask_B11L, self.heads))
        return x_BLD + self.mlp(self.norm2(x_BLD))


class QueryBlock(nn.Module):
    """Pre-norm block in which Q query tokens attend to a context and one another; the context does not change."""

    def __init__(self, width: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.norm_context = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = mlp(width, mlp_ratio * width, width)

    def forward(self, x_BQD: Tensor, context_BLD: Tensor, mask_B11L: Tensor | None) -> Tensor:
        """`mask_B11L` covers the Q queries followed by the context."""
        normed = self.norm1(x_BQD)
        keyed = torch.cat([normed, self.norm_context(context_BLD)], dim=1)
        key, value = self.key_value(keyed).chunk(2, dim=-1)
        x_BQD = x_BQD + self.proj(_attend(self.query(normed), key, value, mask_B11L, self.heads))
        return x_BQD + self.mlp(self.norm2(x_BQD))


class WordEmbedding(nn.Module):
    """Hashed word ids to vectors: one table for each half of the id, plus the word's place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.high = nn.Embedding(1 << HALF_BITS, width)
        self.low = nn.Embedding(1 << HALF_BITS, width)
        self.position = nn.Parameter(0.02 * torch.randn(MAX_TOKENS, width))
        for table in (self.high, self.low):
            nn.init.normal_(table.weight, std=math.sqrt(0.5))

    def read(self, sentences: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Ids of B sentences, int64 `[B, 80]`, and the bool mask of real ones."""
        return pad_ids([tokenize(sentence) for sentence in sentences], MAX_TOKENS)

    def forward(self, text_BL: Tensor) -> Tensor:
        """Ids `[B, L]` to `[B, L, width]`."""
        words = self.high(text_BL >> HALF_BITS) + self.low(text_BL & ((1 << HALF_BITS) - 1))
        return words + self.position[: text_BL.shape[1]]


class PretrainedEmbedding(nn.Module):
    """WordLlama's frozen vectors of word pieces, projected, plus the piece's place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wordllama_folder()
        self.proj = nn.Linear(WORD_DIMS, width)
        self.position = nn.Parameter(0.02 * torch.randn(MAX_TOKENS, width))

    def read(self, sentences: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Vectors of B sentences, float32 `[B, L, F]`, zeros at the end, and the bool mask `[B, L]` of real ones."""
        rows = [torch.from_numpy(word_vectors(sentence)) for sentence in sentences]
        mask_BL = torch.arange(max(map(len, rows))) < torch.tensor([len(row) for row in rows])[:, None]
        return pad_sequence(rows, batch_first=True), mask_BL

    def forward(self, text_BLF: Tensor) -> Tensor:
        """Vectors `[B, L, F]` to `[B, L, width]`."""
        return self.proj(text_BLF) + self.position[: text_BLF.shape[1]]


class VisionStem(nn.Module):
    """Images to grid x grid tokens: three convolutions, the last two scaled and shifted by the sentence.

    The first stride makes every image size arrive at the same grid, so the cost hardly depends on it.
    Conditioning on the sentence this early (FiLM, Perez et al. 2018; RT-1) means that the blocks need not
    learn by attention alone which words belong to which pixels, which RL from scratch learns slowly. For the
    same reason some channels give points: most tasks need the place of an object first.
    """

    def __init__(self, width: int, grid: int, points: int, image_size: int) -> None:
        super().__init__()
        stride = image_size // (4 * grid)
        kernel = max(3, 2 * stride - 1)
        first, second = width // 4, width // 2
        self.conv1 = nn.Conv2d(3, first, kernel, stride=stride, padding=(kernel - 1) // 2)
        self.conv2 = nn.Conv2d(first, second, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(second, width, 3, stride=2, padding=1)
        self.norm1 = nn.GroupNorm(1, first)
        self.norm2 = nn.GroupNorm(1, second)
        self.norm3 = nn.GroupNorm(1, width)
        self.film2 = nn.Linear(width, 2 * second)
        self.film3 = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)
        self.place = nn.Parameter(place_codes(grid, width))
        self.points = nn.Conv2d(second, points, 1)

    def forward(self, pixels_BCHW: Tensor, sentence_BD: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels in [-1, 1] and the pooled sentence to tokens `[B, grid * grid, width]`, points `[B, 2 * points]`."""
        x = functional.gelu(self.norm1(self.conv1(pixels_BCHW)), approximate="tanh")
        x = functional.gelu(_film(self.norm2(self.conv2(x)), self.film2(sentence_BD)), approximate="tanh")
        return self.tokens(x, sentence_BD), self.keypoints(x)

    def keypoints(self, x_BCHW: Tensor) -> Tensor:
        """The map that points come from, to their coordinates in [-1, 1], `[B, 2 * points]`."""
        return spatial_softmax(self.points(x_BCHW))

    def tokens(self, x_BCHW: Tensor, sentence_BD: Tensor) -> Tensor:
        """The map of 2 * grid cells a side to tokens `[B, grid * grid, width]`."""
        x = functional.gelu(_film(self.norm3(self.conv3(x_BCHW)), self.film3(sentence_BD)), approximate="tanh")
        return self.proj(x.flatten(2).transpose(1, 2)) + self.place


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside a skip, the second one's input scaled and shifted by the sentence.

    ReLU: on a CPU, GELU takes a third as long as a convolution of so few channels.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(1, channels), nn.GroupNorm(1, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.film = nn.Linear(width, 2 * channels)

    def forward(self, x_BCHW: Tensor, sentence_BD: Tensor) -> Tensor:
        """`[B, C, H, W]` to the same shape."""
        y = self.conv1(functional.relu(self.norm1(x_BCHW)))
        return x_BCHW + self.conv2(functional.relu(_film(self.norm2(y), self.film(sentence_BD))))


class DeepVisionStem(VisionStem):
    """As `VisionStem`, but points come from the finest map, after a residual block.

    A cell is then half as wide, and what a point belongs to is told from as wide a view.
    """

    def __init__(self, width: int, grid: int, points: int, image_size: int) -> None:
        super().__init__(width, grid, points, image_size)
        self.block = ResidualBlock(width // 4, width)
        self.points = nn.Conv2d(width // 4, points, 1)

    def forward(self, pixels_BCHW: Tensor, sentence_BD: Tensor) -> tuple[Tensor, Tensor]:
        x = functional.relu(self.norm1(self.block(self.conv1(pixels_BCHW), sentence_BD)))
        points_BP = self.keypoints(x)
        x = functional.gelu(_film(self.norm2(self.conv2(x)), self.film2(sentence_BD)), approximate="tanh")
        return self.tokens(x, sentence_BD), points_BP


class ContrastVisionStem(DeepVisionStem):
    """As `DeepVisionStem`, but each image's colours and each point's scores are standardised over the image.

    Bare scores are so alike at first that all points stay in the middle, and learning may leave them there: a puck
    of 4 dark pixels on dark wood is not found in 900 updates, and in 300 of these. Instance
    normalisation: Ulyanov et al. 2016, "Instance Normalization: The Missing Ingredient for Fast Stylization".
    """

    def forward(self, pixels_BCHW: Tensor, sentence_BD: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(functional.instance_norm(pixels_BCHW), sentence_BD)

    def keypoints(self, x_BCHW: Tensor) -> Tensor:
        return spatial_softmax(functional.instance_norm(self.points(x_BCHW)), sharpness=2.0)


class PrivilegedHead(nn.Module):
    """Features of the images to numbers of the simulator's privileged vector, in deviations of the demonstrations."""

    mean_P: Tensor
    std_P: Tensor

    def __init__(self, width: int, dims: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = mlp(width, 2 * width, dims)
        self.register_buffer("mean_P", torch.zeros(dims))
        self.register_buffer("std_P", torch.ones(dims))

    def fit(self, privileged_FP: Tensor) -> None:
        """Take mean and standard deviation from all F frames."""
        self.mean_P.copy_(privileged_FP.mean(dim=0))
        self.std_P.copy_(privileged_FP.std(dim=0, correction=0))

    def forward(self, x_BD: Tensor) -> Tensor:
        """`[B, width]` to predicted deviations from the mean `[B, P]`, in standard deviations."""
        return self.mlp(self.norm(x_BD))

    def error(self, predicted_BP: Tensor, privileged_BP: Tensor) -> Tensor:
        """Huber's error with delta 1 of each row, `[B]`: the mean over the numbers that vary in the demonstrations."""
        varies_P = (self.std_P > SMALLEST_STD).to(predicted_BP.dtype)
        target_BP = (privileged_BP - self.mean_P) / self.std_P.clamp(min=SMALLEST_STD)
        error_BP = functional.smooth_l1_loss(predicted_BP, target_BP, reduction="none")
        return (error_BP * varies_P).sum(dim=1) / varies_P.sum().clamp(min=1.0)


class ActionHead(nn.Module):
    """One token per chunk step to V logits for each of A dims: logit = feature . E[bin] + prior[bin].

    E starts as low Fourier modes of the bin's centre, weighted like the spectrum of a Gaussian kernel. So a
    gradient that favours one bin favours its neighbours too, by about exp(-(x - x')^2 / (2 smoothness^2)):
    256 unrelated logits would need every bin to be tried. E is learned afterwards. `prior` is fixed: the
    log of a Gaussian of `initial_std`, which decides how far the first random actions reach.
    """

    prior_V: Tensor

    def __init__(
        self,
        width: int,
        action_dim: int,
        codec: UniformBins,
        features: int,
        smoothness: float,
        initial_std: float,
    ) -> None:
        super().__init__()
        self.action_dim = action_dim
        self.norm = nn.LayerNorm(width)
        self.features = nn.Linear(width, action_dim * features)
        nn.init.normal_(self.features.weight, std=0.01 / math.sqrt(width))
        nn.init.zeros_(self.features.bias)
        centres = codec.centres()
        self.bins_VF = nn.Parameter(bin_codes(centres, features, smoothness))
        self.register_buffer("prior_V", -0.5 * (centres / initial_std) ** 2, persistent=False)

    def forward(self, x_BKD: Tensor) -> Tensor:
        """`[B, K, width]` to logits `[B, K, A, V]`."""
        feature = self.features(self.norm(x_BKD)).unflatten(-1, (self.action_dim, -1))
        return feature @ self.bins_VF.T + self.prior_V


class ValueHead(nn.Module):
    """The value token to a number; its last layer starts so small that first values are near 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Parameter(0.02 * torch.randn(1, width))
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)
        nn.init.normal_(self.out.weight, std=1e-3)
        nn.init.zeros_(self.out.bias)

    def forward(self, x_BD: Tensor) -> Tensor:
        """`[B, width]` to `[B]`."""
        return self.out(functional.gelu(self.hidden(self.norm(x_BD)), approximate="tanh"))[..., 0]


def place_codes(grid: int, width: int) -> Tensor:
    """Sine-cosine codes of the cells of a grid, row-major, `[grid * grid, width]`; half for y, half for x."""
    frequency = torch.pi * torch.arange(1, width // 4 + 1) / 4.0
    cell = (torch.arange(grid) + 0.5) / grid
    code = torch.cat([torch.sin(cell[:, None] * frequency), torch.cos(cell[:, None] * frequency)], dim=1)
    rows = code[:, None].expand(grid, grid, -1)
    columns = code[None].expand(grid, grid, -1)
    return torch.cat([rows, columns], dim=-1).reshape(grid * grid, -1)


def bin_codes(centres_V: Tensor, features: int, smoothness: float) -> Tensor:
    """Features `[V, features]` whose inner products fall off like a Gaussian of `smoothness` between bins.

    Modes of period 4 / j, j = 1, 2, ..., on [-1, 1]: twice the range, so that -1 and 1 are far apart.
    """
    mode = torch.arange(1, features // 2 + 1)
    weight = torch.exp(-0.25 * (0.5 * torch.pi * mode * smoothness) ** 2)
    angle = 0.5 * torch.pi * mode * centres_V[:, None]
    code = torch.cat([weight * torch.sin(angle), weight * torch.cos(angle)], dim=1)
    return code / weight.square().sum().sqrt()


def spatial_softmax(score_BCHW: Tensor, sharpness: float = 5.0) -> Tensor:
    """The mean place under each channel's softmax, x and y in [-1, 1], `[B, 2 * C]`.

    Levine et al. 2016, "End-to-End Training of Deep Visuomotor Policies", section 4.1. `sharpness` multiplies
    the scores: fresh ones that are not standardised are so flat that every mean would lie in the middle.
    """
    height, width = score_BCHW.shape[2:]
    weight = (sharpness * score_BCHW.float()).flatten(2).softmax(dim=-1).unflatten(-1, (height, width))
    xs, ys = _centres(width, weight), _centres(height, weight)
    points_BP = torch.cat([(weight.sum(dim=2) * xs).sum(-1), (weight.sum(dim=3) * ys).sum(-1)], dim=1)
    return points_BP.to(score_BCHW.dtype)


def _centres(side: int, like: Tensor) -> Tensor:
    return (2.0 * torch.arange(side, device=like.device, dtype=like.dtype) + 1.0) / side - 1.0


def state_codes(state_BS: Tensor) -> Tensor:
    """Proprioception with sines and cosines of its four doublings, `[B, S * 9]`.

    A linear layer over bare numbers separates near states only after its weights have grown.
    """
    angle = torch.pi * state_BS[..., None] * (2.0 ** torch.arange(4, device=state_BS.device)) * 0.5
    return torch.cat([state_BS[..., None], angle.sin(), angle.cos()], dim=-1).flatten(1)


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, outputs))


def _attend(query: Tensor, key: Tensor, value: Tensor, mask_B11L: Tensor | None, heads: int) -> Tensor:
    query, key, value = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, key, value))
    mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask_B11L)
    return mixed.transpose(1, 2).flatten(2)


def _film(x_BCHW: Tensor, scale_shift_B: Tensor) -> Tensor:
    scale, shift = scale_shift_B[..., None, None].chunk(2, dim=1)
    return x_BCHW * (1.0 + scale) + shift
