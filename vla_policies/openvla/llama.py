"""Llama layer by layer: bidirectional, causal with a cache, or prefix and suffix together.

By hand, not transformers' own loop and layers: cached decoding there rounds differently from a full pass, and the ratio
before the first update must be exactly 1. `decode_after` serves acting and training alike: the suffix attends to the
prefix's keys and values, cached (acting) or computed again (training), by the same operations on the same shapes, so
that both give the same bits. A layer takes and returns tensors alone, which `torch.compile` and CUDA graphs need, and
computes what transformers' does with half the kernels: one for a norm, queries and keys turned together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

from vla_policies.modules.fused_lora import linears
from vla_policies.modules.training import CheckpointFn

KeyValue = tuple[Tensor, Tensor]
"""Keys, turned to their places, and values of some tokens in one layer, `[B, heads, L, head_dim]` each."""
RotaryTables = tuple[Tensor, Tensor]
"""Cosines, and sines whose first half is negative, `[B, 1, L, head_dim]` each."""


class Rotary(nn.Module):
    """Rotary position embedding without buffers, which the meta device or bf16 would spoil."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.theta = theta

    def forward(self, x: Tensor, position_ids: Tensor) -> RotaryTables:
        """Tables in the dtype of `x`."""
        power = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=x.device) / self.head_dim
        angle = position_ids[:, None, :, None].float() * (1.0 / self.theta**power)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


class RMSNorm(LlamaRMSNorm):
    """transformers' norm in one kernel: in float32 the same bits, in half precision rounded once instead of twice."""

    def forward(self, x: Tensor) -> Tensor:
        """`[..., D]`, normed over the last dim."""
        return functional.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


@dataclass(frozen=True)
class ReadPlaces:
    """The places of a segment whose outputs are needed."""

    place_BS: Tensor
    """Indices into the segment, int64."""
    rotary: RotaryTables
    """Tables of these places."""


class Layer(LlamaDecoderLayer):
    """transformers' layer, in float32 bit for bit."""

    def forward(
        self,
        x_BLD: Tensor,
        rotary: RotaryTables,
        mask: Tensor | None,
        causal: bool = False,
        earlier: KeyValue | None = None,
        room: tuple[Tensor, Tensor, int] | None = None,
        read: ReadPlaces | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states after the layer, `[B, L, D]`, and these tokens' keys and values.

        The tokens attend to themselves; and to `earlier` ones, which come first; or to those in the first places of
        `room`, two buffers and the number of tokens in them, where their own are written after them. With `read` the
        output is that of its places alone, `[B, S, D]`: the others have no queries, output projection and MLP.
        """
        attention = self.self_attn
        normed_BLD = self.input_layernorm(x_BLD)
        if read is None:
            projections = (attention.q_proj, attention.k_proj, attention.v_proj)
            query, key, value = (_heads(x, attention.head_dim) for x in linears(projections, normed_BLD))
            num_heads = query.shape[1]
            query, key = _turned(torch.cat([query, key], dim=1), rotary).tensor_split((num_heads,), dim=1)
        else:
            projected = linears((attention.k_proj, attention.v_proj), normed_BLD)
            key, value = (_heads(x, attention.head_dim) for x in projected)
            place_BSD = read.place_BS[..., None].expand(-1, -1, x_BLD.shape[2])
            x_BLD, normed_BLD = x_BLD.gather(1, place_BSD), normed_BLD.gather(1, place_BSD)
            query = _turned(_heads(attention.q_proj(normed_BLD), attention.head_dim), read.rotary)
            key = _turned(key, rotary)
        keys, values = _attended((key, value), earlier, room)
        mixed = functional.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=mask,
            is_causal=causal,
            scale=attention.scaling,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
        x_BLD = x_BLD + attention.o_proj(mixed.transpose(1, 2).flatten(2))
        gate_BLM, up_BLM = linears((self.mlp.gate_proj, self.mlp.up_proj), self.post_attention_layernorm(x_BLD))
        return x_BLD + self.mlp.down_proj(functional.silu(gate_BLM) * up_BLM), key, value


def _attended(own: KeyValue, earlier: KeyValue | None, room: tuple[Tensor, Tensor, int] | None) -> KeyValue:
    if earlier is not None:
        return torch.cat([earlier[0], own[0]], dim=2), torch.cat([earlier[1], own[1]], dim=2)
    if room is None:
        return own
    start = room[2]
    end = start + own[0].shape[2]
    for buffer, new in zip(room[:2], own, strict=True):
        buffer[:, :, start:end] = new
    return room[0][:, :, :end], room[1][:, :, :end]


def _heads(x_BLD: Tensor, head_dim: int) -> Tensor:
    return x_BLD.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def _turned(x: Tensor, rotary: RotaryTables) -> Tensor:
    """`[B, heads, L, head_dim]` turned by its places, halves paired as Llama pairs them."""
    cos, sin = rotary
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([second, first], dim=-1) * sin


@dataclass(frozen=True)
class KVCache:
    """Keys and values of a prefix in every layer, and room for the tokens decoded after it, which are written in place:
    one copy of the prefix instead of one per token."""

    layers: list[KeyValue]
    length: int
    """L, tokens of the prefix."""


@dataclass(frozen=True)
class Segment:
    """Tokens that enter the layers together."""

    x_BLD: Tensor
    """Embeddings."""
    position_BL: Tensor
    """Place of each token in its own row's sequence, int64."""
    mask: Tensor | None
    """True where a query may attend, broadcastable to `[B, 1, L, keys]`; None = no mask but `causal`."""
    causal: bool = False
    """Without a mask: each token attends only to those before it (True) or to all (False)."""


def build_llama(text_config: Mapping[str, Any]) -> LlamaForCausalLM:
    """The language model of an OpenVLA `text_config`, which has only differences from the defaults."""
    values = {key: value for key, value in text_config.items() if key not in ("model_type", "torch_dtype", "dtype")}
    config = LlamaConfig(**values)
    model = LlamaForCausalLM(config)
    head_dim = config.hidden_size // config.num_attention_heads
    model.model.rotary_emb = Rotary(head_dim, config.rope_parameters["rope_theta"])
    for module in model.modules():
        if type(module) is LlamaRMSNorm:
            module.__class__ = RMSNorm
        elif type(module) is LlamaDecoderLayer:
            module.__class__ = Layer
    return model


def run_layers(model: LlamaModel, segment: Segment, run_block: CheckpointFn, read_BS: Tensor | None = None) -> Tensor:
    """Hidden states `[B, L, D]` before the final norm.

    With `read_BS`, indices into a segment that is not causal, only those there, `[B, S, D]`: of the other tokens the
    last layer computes keys and values alone, no queries, output projection and MLP.
    """
    run, x_BLD = _Runner.on(model, segment), segment.x_BLD
    for layer in model.layers[:-1]:
        x_BLD = run_block(run.hidden, layer, x_BLD)
    if read_BS is not None:
        # Rows may have tables of their own, or share them.
        place = read_BS[:, None, :, None].expand(-1, -1, -1, run.rotary[0].shape[3])
        cos, sin = (table.expand(len(read_BS), -1, -1, -1).gather(2, place) for table in run.rotary)
        run = replace(run, read=ReadPlaces(read_BS, (cos, sin)))
    return run_block(run.hidden, model.layers[-1], x_BLD)


def prefill(model: LlamaModel, prefix: Segment, room: int) -> tuple[Tensor, KVCache]:
    """Hidden states of the prefix before the final norm, and its cache with `room` for later tokens."""
    run, x_BLD, kept = _Runner.on(model, prefix), prefix.x_BLD, list[KeyValue]()
    for layer in model.layers:
        x_BLD, key, value = run(layer, x_BLD)
        kept.append((_with_room(key, room), _with_room(value, room)))
    return x_BLD, KVCache(kept, prefix.x_BLD.shape[1])


def _with_room(x: Tensor, room: int) -> Tensor:
    out = x.new_empty(*x.shape[:2], x.shape[2] + room, x.shape[3])
    out[:, :, : x.shape[2]] = x
    return out


def decode_step(model: LlamaModel, step: Segment, cache: KVCache, after: int) -> Tensor:
    """Hidden states of tokens that join the prefix and `after` others, before the final norm; `cache` takes them up."""
    run, x_BLD = _Runner.on(model, step), step.x_BLD
    for layer, buffers in zip(model.layers, cache.layers, strict=True):
        x_BLD, _, _ = run(layer, x_BLD, room=(*buffers, cache.length + after))
    return x_BLD


def decode_after(
    model: LlamaModel, prefix: Segment, suffix: Segment, cache: KVCache | None, run_block: CheckpointFn
) -> tuple[Tensor | None, Tensor]:
    """Hidden states of prefix and suffix before the final norm, as if they were one causal sequence.

    With the `cache` of `prefill` the prefix is not run again, and its hidden states are None.
    """
    run_prefix, run_suffix = _Runner.on(model, prefix), _Runner.on(model, suffix)

    def both(layer: nn.Module, prefix_x: Tensor, suffix_x: Tensor) -> tuple[Tensor, Tensor]:
        prefix_x, key, value = run_prefix(layer, prefix_x)
        return prefix_x, run_suffix(layer, suffix_x, earlier=(key, value))[0]

    prefix_x, suffix_x = prefix.x_BLD, suffix.x_BLD
    for index, layer in enumerate(model.layers):
        if cache is None:
            prefix_x, suffix_x = run_block(both, layer, prefix_x, suffix_x)
        else:
            key, value = (x[:, :, : cache.length] for x in cache.layers[index])
            suffix_x = run_suffix(layer, suffix_x, earlier=(key, value))[0]
    return (prefix_x if cache is None else None), suffix_x


@dataclass(frozen=True)
class _Runner:
    """One layer on one segment; rotary tables are computed once for all layers."""

    rotary: RotaryTables
    mask: Tensor | None
    causal: bool
    read: ReadPlaces | None = None

    @classmethod
    def on(cls, model: LlamaModel, segment: Segment) -> _Runner:
        rotary = model.rotary_emb(segment.x_BLD, segment.position_BL)
        return cls(rotary, segment.mask, segment.causal and segment.mask is None)

    def __call__(self, layer: nn.Module, x_BLD: Tensor, **cached: Any) -> tuple[Tensor, Tensor, Tensor]:
        return layer(x_BLD, self.rotary, self.mask, causal=self.causal, read=self.read, **cached)

    def hidden(self, layer: nn.Module, x_BLD: Tensor) -> Tensor:
        """The hidden states alone."""
        return self(layer, x_BLD)[0]
