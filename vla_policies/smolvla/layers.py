"""Llama layers of SmolVLA's streams under their published names: the prefix's, and the expert's joint and cross layers.

By hand, not transformers' LlamaModel: the expert attends to keys and values of another stream. Letters as in
`modules.gemma`; E is the expert's width.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, rotate_half

from vla_policies.modules.gemma import KeyValue, for_every_head
from vla_policies.smolvla.config import LlamaShape

Rotary = tuple[Tensor, Tensor]
"""Cosines and sines of `modules.gemma.rotary_embedding`, float32."""


class Projections(nn.Module):
    """The four layers of an attention; keys and values are made of `source_width` features."""

    def __init__(self, shape: LlamaShape, source_width: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(shape.width, shape.num_heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(source_width, shape.num_kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(source_width, shape.num_kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.num_heads * shape.head_dim, shape.width, bias=False)


class LlamaLayer(nn.Module):
    """A layer whose tokens attend to those of an earlier pass and to each other: of the prefix, or a joint one."""

    def __init__(self, shape: LlamaShape, source_width: int | None = None) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.self_attn = Projections(shape, shape.width if source_width is None else source_width)
        self.mlp = LlamaMLP(
            LlamaConfig(hidden_size=shape.width, intermediate_size=shape.mlp_dim, num_attention_heads=1)
        )
        self.input_layernorm = LlamaRMSNorm(shape.width, eps=shape.norm_epsilon)
        self.post_attention_layernorm = LlamaRMSNorm(shape.width, eps=shape.norm_epsilon)

    def forward(
        self, x_BQD: Tensor, rotary: Rotary, mask_B1QL: Tensor | None, earlier: KeyValue | None = None
    ) -> tuple[Tensor, KeyValue]:
        """The layer's output, and keys and values of these tokens alone.

        `mask_B1QL` is True where a query attends to a key; keys are those of `earlier` followed by these.
        """
        normed = self.input_layernorm(x_BQD)
        own = self._key_value(normed, rotary)
        keys = own if earlier is None else earlier.followed_by(own)
        return self._mix(x_BQD, self._query(normed, rotary), keys, mask_B1QL), own

    def key_value(self, x_BQD: Tensor, rotary: Rotary) -> KeyValue:
        """Keys and values alone, when nothing of the layer's output is needed."""
        return self._key_value(self.input_layernorm(x_BQD), rotary)

    def _key_value(self, normed_BQD: Tensor, rotary: Rotary) -> KeyValue:
        key = rotated(self._heads(self.self_attn.k_proj(normed_BQD)), rotary)
        return KeyValue(key, self._heads(self.self_attn.v_proj(normed_BQD)))

    def _query(self, normed_BQD: Tensor, rotary: Rotary) -> Tensor:
        return rotated(self._heads(self.self_attn.q_proj(normed_BQD)), rotary)

    def _heads(self, x_BQF: Tensor) -> Tensor:
        return x_BQF.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _mix(self, x_BQD: Tensor, query: Tensor, keys: KeyValue, mask_B1QL: Tensor | None) -> Tensor:
        """Attention, MLP and their residuals."""
        mixed = functional.scaled_dot_product_attention(
            query,
            for_every_head(keys.key_BCLF, query.shape[1]),
            for_every_head(keys.value_BCLF, query.shape[1]),
            attn_mask=mask_B1QL,
        )
        x_BQD = x_BQD + self.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x_BQD + self.mlp(self.post_attention_layernorm(x_BQD))
        return out


class CrossLayer(LlamaLayer):
    """A layer of the expert whose tokens attend to the prefix alone, by projections of its keys and values."""

    run_in_parts = True
    """`project` runs apart from `forward`: FSDP2 leaves the layer in one unit with others (`zoo.distributed.fsdp`)."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__(shape, source_width=shape.num_kv_heads * shape.head_dim)

    def project(self, prefix: KeyValue) -> KeyValue:
        """The prefix's rotated keys, and values, as this layer's: they depend on the prefix alone. Keys are not rotated
        again."""
        weight = self.self_attn.k_proj.weight
        key, value = (
            self._heads(projection(x_BCLF.transpose(1, 2).flatten(2).to(weight.dtype)))
            for projection, x_BCLF in (
                (self.self_attn.k_proj, prefix.key_BCLF),
                (self.self_attn.v_proj, prefix.value_BCLF),
            )
        )
        return KeyValue(key, value)

    def forward(  # type: ignore[override]
        self, x_BQD: Tensor, rotary: Rotary, mask_B1QL: Tensor | None, projected: KeyValue
    ) -> tuple[Tensor, KeyValue]:
        """The layer's output, and `projected` again."""
        query = self._query(self.input_layernorm(x_BQD), rotary)
        return self._mix(x_BQD, query, projected, mask_B1QL), projected


def rotated(x_BCQF: Tensor, rotary: Rotary) -> Tensor:
    """Heads turned to their positions, in float32 and back, as in training."""
    cos, sin = (x[:, None] for x in rotary)
    wide = x_BCQF.float()
    out: Tensor = wide * cos + rotate_half(wide) * sin
    return out.to(x_BCQF.dtype)
