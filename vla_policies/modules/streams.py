"""Transformer streams of flow policies: a prefix of images and text encoded once, and Gemma layers that attend to it.

By hand, not transformers' GemmaModel: the expert attends to keys and values of another stream, and time conditions
its norms in pi0.5.
Letters: L tokens of the prefix (images and text), Q tokens of a stream, D its width, C kv heads, F head size, W the
width of the vision-language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GemmaConfig
from transformers.models.gemma.modeling_gemma import GemmaMLP, GemmaRMSNorm, apply_rotary_pos_emb

from vla_policies.devices import upload
from vla_policies.modules.training import checkpoint_fn
from vla_policies.types import is_padded

ROPE_THETA = 10000.0
NORM_EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class GemmaShape:
    """One Gemma stream, in openpi's words; `num_heads` are of queries.

    Streams that attend to each other are equal in all but width and MLP.
    """

    width: int
    mlp_dim: int
    depth: int
    num_heads: int = 8
    num_kv_heads: int = 1
    head_dim: int = 256


@dataclass(frozen=True)
class KeyValue:
    """Keys (rotated to their positions) and values of one layer, for later tokens to attend to."""

    key_BCLF: Tensor
    value_BCLF: Tensor

    def followed_by(self, later: KeyValue) -> KeyValue:
        """These tokens, then `later`, in the dtype of those."""
        return KeyValue(
            torch.cat([self.key_BCLF.to(later.key_BCLF.dtype), later.key_BCLF], dim=2),
            torch.cat([self.value_BCLF.to(later.value_BCLF.dtype), later.value_BCLF], dim=2),
        )


@dataclass(frozen=True)
class Prefix:
    """Images and text, encoded."""

    layers: tuple[KeyValue, ...]
    """Keys and values of every layer."""
    mask_BL: Tensor
    """True where a token is real."""
    hidden_BLW: Tensor | None
    """Hidden states after the last norm, arbitrary where padded; None unless requested."""

    @property
    def mean_BW(self) -> Tensor | None:
        """Mean of the hidden states over the real tokens, float32, where the prefix has them."""
        return None if self.hidden_BLW is None else masked_mean(self.hidden_BLW, self.mask_BL)


class AdaptiveRMSNorm(nn.Module):
    """RMS norm whose scale, shift and residual gate come from a condition (pi0.5's time)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, 3 * width)
        nn.init.zeros_(self.dense.weight)
        nn.init.zeros_(self.dense.bias)

    def forward(self, x_BQD: Tensor, condition_BD: Tensor) -> tuple[Tensor, Tensor]:
        """Normed tokens and the gate `[B, 1, D]` of the sublayer's output."""
        scale, shift, gate = self.dense(condition_BD)[:, None].float().chunk(3, dim=-1)
        wide = x_BQD.float()
        normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + NORM_EPSILON)
        return (normed * (1.0 + scale) + shift).type_as(x_BQD), gate.type_as(x_BQD)


class GemmaLayer(nn.Module):
    """One layer of one stream."""

    def __init__(self, shape: GemmaShape, *, adaptive: bool) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.q_proj = nn.Linear(shape.width, shape.num_heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.width, shape.num_kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.num_kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.num_heads * shape.head_dim, shape.width, bias=False)
        self.mlp = GemmaMLP(GemmaConfig(hidden_size=shape.width, intermediate_size=shape.mlp_dim))
        self.input_layernorm = make_norm(shape.width, adaptive=adaptive)
        self.post_attention_layernorm = make_norm(shape.width, adaptive=adaptive)

    def forward(
        self,
        x_BQD: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask_B1QL: Tensor | None,
        earlier: KeyValue | None = None,
        condition_BD: Tensor | None = None,
    ) -> tuple[Tensor, KeyValue]:
        """The layer's output, and keys and values of these tokens alone.

        `mask_B1QL` is True where a query attends to a key; keys are those of `earlier` followed by these.
        """
        normed, gate = apply_norm(self.input_layernorm, x_BQD, condition_BD)
        query, own = self._project(normed, rotary)
        joined = own if earlier is None else earlier.followed_by(own)
        keys, values = (for_every_head(x, query.shape[1]) for x in (joined.key_BCLF, joined.value_BCLF))
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask_B1QL)
        x_BQD = x_BQD + gated(self.o_proj(mixed.transpose(1, 2).flatten(2)), gate)
        normed, gate = apply_norm(self.post_attention_layernorm, x_BQD, condition_BD)
        return x_BQD + gated(self.mlp(normed), gate), own

    def key_value(self, x_BQD: Tensor, rotary: tuple[Tensor, Tensor]) -> KeyValue:
        """Keys and values alone, when nothing of the layer's output is needed (plain norms)."""
        return self._project(self.input_layernorm(x_BQD), rotary)[1]

    def _project(self, normed_BQD: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, KeyValue]:
        query, key, value = (
            proj(normed_BQD).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *rotary)
        return query, KeyValue(key, value)


class ActionExpert(nn.Module):
    """The stream that denoises: its tokens attend to a prefix encoded earlier and, by a mask, to one another."""

    def __init__(self, shape: GemmaShape, *, adaptive: bool) -> None:
        super().__init__()
        self.shape = shape
        self.recompute = False
        self.layers = nn.ModuleList(GemmaLayer(shape, adaptive=adaptive) for _ in range(shape.depth))
        self.norm = make_norm(shape.width, adaptive=adaptive)

    def forward(
        self,
        x_BQD: Tensor,
        prefix: Sequence[KeyValue],
        position_BQ: Tensor,
        mask_B1QL: Tensor | None,
        condition_BD: Tensor | None = None,
    ) -> Tensor:
        """`[B, Q, D]`, after the last norm; `prefix` holds one `KeyValue` per layer."""
        rotary = rotary_embedding(position_BQ, self.shape.head_dim, x_BQD.dtype)
        run = checkpoint_fn(recompute=self.recompute)
        for layer, earlier in zip(self.layers, prefix, strict=True):
            x_BQD, _ = run(layer, x_BQD, rotary, mask_B1QL, earlier, condition_BD)
        return apply_norm(self.norm, x_BQD, condition_BD)[0]


def run_prefix(
    layers: Sequence[nn.Module] | nn.ModuleList,
    norm: nn.Module,
    x_BLW: Tensor,
    mask_BL: Tensor,
    *,
    head_dim: int,
    recompute: bool,
    with_hidden: bool,
    rotary_dtype: torch.dtype | None = None,
) -> Prefix:
    """Run embedded tokens, which all see each other, through all `layers`: each gives its output and its `KeyValue`.

    Without `with_hidden` the last one computes keys and values only. Padding takes no position; a `mask_BL` on the CPU
    spares a GPU the question whether there is any. `rotary_dtype` is that of cosines and sines; None = that of the
    tokens.
    """
    position_BL = upload((mask_BL.long().cumsum(dim=1) - 1).clamp(min=0), x_BLW.device)
    rotary = rotary_embedding(position_BL, head_dim, rotary_dtype or x_BLW.dtype)
    padded, mask_BL = is_padded(mask_BL), upload(mask_BL, x_BLW.device)
    mask_B1QL = mask_BL[:, None, None].expand(-1, 1, mask_BL.shape[1], -1) if padded else None
    run = checkpoint_fn(recompute=recompute)
    kept: list[KeyValue] = []
    for index, layer in enumerate(layers):
        if index + 1 == len(layers) and not with_hidden:
            kept.append(layer.key_value(x_BLW, rotary))  # type: ignore[operator]
            break
        x_BLW, own = run(layer, x_BLW, rotary, mask_B1QL)
        kept.append(own)
    return Prefix(tuple(kept), mask_BL, norm(x_BLW) if with_hidden else None)


def masked_mean(x_BLD: Tensor, mask_BL: Tensor) -> Tensor:
    """Mean over the real tokens, float32 `[B, D]`."""
    weight_BL1 = mask_BL[..., None].float()
    return (x_BLD.float() * weight_BL1).sum(dim=1) / weight_BL1.sum(dim=1)


def for_every_head(x_BCLF: Tensor, num_heads: int) -> Tensor:
    """Keys or values of C heads for as many query heads, `[B, num_heads, L, F]`; of one head a view.

    `enable_gqa` would do the same, but CUDA has no fused kernel for it with a mask or in float32, and its other one
    keeps every attention weight.
    """
    groups = num_heads // x_BCLF.shape[1]
    return x_BCLF[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2)


def rotary_embedding(position_BQ: Tensor, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, `[B, Q, head_dim]` each, computed in float32."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32, device=position_BQ.device) / head_dim
    angle = position_BQ[..., None].float() * (1.0 / ROPE_THETA**exponent)
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def suffix_mask(prefix_mask_BL: Tensor, num_actions: int, *, state_token: bool) -> Tensor:
    """Bool `[B, 1, Q, L + Q]`: all attend to the prefix, the state token to itself, actions to all of the suffix."""
    num_samples, length = prefix_mask_BL.shape
    num_queries = num_actions + state_token
    mask = torch.ones(num_samples, 1, num_queries, length + num_queries, dtype=torch.bool, device=prefix_mask_BL.device)
    mask[..., :length] = prefix_mask_BL[:, None, None]
    if state_token:
        mask[:, :, 0, length + 1 :] = False
    return mask


def apply_norm(norm: nn.Module, x_BQD: Tensor, condition_BD: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Normed tokens, and the gate of the sublayer that follows (None: no gate)."""
    if isinstance(norm, AdaptiveRMSNorm):
        assert condition_BD is not None
        normed, gate = norm(x_BQD, condition_BD)
        return normed, gate
    return norm(x_BQD), None


def gated(x_BQD: Tensor, gate_B1D: Tensor | None) -> Tensor:
    """The sublayer's contribution to the residual stream."""
    return x_BQD if gate_B1D is None else gate_B1D * x_BQD


def make_norm(width: int, *, adaptive: bool) -> nn.Module:
    return AdaptiveRMSNorm(width) if adaptive else GemmaRMSNorm(width, eps=NORM_EPSILON)
