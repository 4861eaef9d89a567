"""Llama layer by layer: bidirectional, causal with a cache, or prefix and suffix together.

By hand, not transformers' own loop and layers: cached decoding there rounds differently from a full pass, and the ratio
before the first update must be exactly 1. `decode_after` serves acting and training alike: the suffix attends to the
prefix's keys and values, cached (acting) or computed again (training), by the same operations on the same shapes, so
that both give the same bits. A layer takes and returns tensors alone, which `torch.compile` and CUDA graphs need, and
computes what transformers' does with half the kernels: one for a norm, queries and keys turned together.
"""

from __future__ import annotations

from dataclasses import dataclass
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


class KVCache:
    """Keys and values of a prefix in every layer, and room for the tokens decoded after it."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._length = 0
        self._filled = 0
        self._buffers: list[KeyValue] = []

    def begin(self, key: Tensor, value: Tensor) -> None:
        """Add the next layer's prefix. Later tokens are written in place: one copy of it instead of one per token."""
        self._length = self._filled = key.shape[2]
        self._buffers.append((self._with_room(key), self._with_room(value)))

    def prefix(self, layer: int) -> KeyValue:
        """The prefix of a layer."""
        key, value = self._buffers[layer]
        return key[:, :, : self._length], value[:, :, : self._length]

    def room(self, layer: int) -> tuple[Tensor, Tensor, int]:
        """`Layer.forward`'s `room`."""
        return *self._buffers[layer], self._filled

    def advance(self, count: int) -> None:
        """Count tokens that every layer has written."""
        self._filled += count

    def _with_room(self, x: Tensor) -> Tensor:
        out = x.new_empty(*x.shape[:2], x.shape[2] + self._room, x.shape[3])
        out[:, :, : x.shape[2]] = x
        return out


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


def build_llama(text_config: dict[str, Any]) -> LlamaForCausalLM:
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


def run_layers(model: LlamaModel, segment: Segment, run_block: CheckpointFn) -> Tensor:
    """Hidden states `[B, L, D]` before the final norm."""
    run, x_BLD = _Runner(model, segment), segment.x_BLD
    for layer in model.layers:
        x_BLD = run_block(run.hidden, layer, x_BLD)
    return x_BLD


def run_layers_at(model: LlamaModel, segment: Segment, read_BS: Tensor, run_block: CheckpointFn) -> Tensor:
    """As `run_layers`, but only the hidden states at places `read_BS` (indices into the segment), `[B, S, D]`.

    The last layer computes keys and values of the other tokens only: no queries, output projection and MLP.
    """
    if segment.causal:
        raise ValueError("reading at some places only is for segments where all tokens attend to each other")
    run, x_BLD = _Runner(model, segment), segment.x_BLD
    for layer in model.layers[:-1]:
        x_BLD = run_block(run.hidden, layer, x_BLD)
    cos, sin = run.rotary
    # Rows may have tables of their own, or share them.
    place = read_BS[:, None, :, None].expand(-1, -1, -1, cos.shape[3])
    rotary = (
        cos.expand(len(read_BS), -1, -1, -1).gather(2, place),
        sin.expand(len(read_BS), -1, -1, -1).gather(2, place),
    )
    # Layers may lie on other devices; the last is where the inputs were.
    last = _Runner(model, segment, run.rotary, ReadPlaces(read_BS, rotary))
    return run_block(last.hidden, model.layers[-1], x_BLD.to(read_BS.device))


def prefill(model: LlamaModel, prefix: Segment, room: int) -> tuple[Tensor, KVCache]:
    """Hidden states of the prefix before the final norm, and its cache with `room` for later tokens."""
    run, cache, x_BLD = _Runner(model, prefix), KVCache(room), prefix.x_BLD
    for layer in model.layers:
        x_BLD, key, value = run(layer, x_BLD)
        cache.begin(key, value)
    return x_BLD, cache


def decode_step(model: LlamaModel, step: Segment, cache: KVCache) -> Tensor:
    """Hidden states of tokens that join the prefix, before the final norm; `cache` grows."""
    run, x_BLD = _Runner(model, step), step.x_BLD
    for index, layer in enumerate(model.layers):
        x_BLD, _, _ = run(layer, x_BLD, room=cache.room(index))
    cache.advance(x_BLD.shape[1])
    return x_BLD


def decode_after(
    model: LlamaModel, prefix: Segment, suffix: Segment, cache: KVCache | None, run_block: CheckpointFn
) -> tuple[Tensor | None, Tensor]:
    """Hidden states of prefix and suffix before the final norm, as if they were one causal sequence.

    With the `cache` of `prefill` the prefix is not run again, and its hidden states are None.
    """
    run_prefix, run_suffix = _Runner(model, prefix), _Runner(model, suffix)

    def both(layer: nn.Module, prefix_x: Tensor, suffix_x: Tensor) -> tuple[Tensor, Tensor]:
        prefix_x, key, value = run_prefix(layer, prefix_x)
        return prefix_x, run_suffix(layer, suffix_x, earlier=(key, value))[0]

    prefix_x, suffix_x = prefix.x_BLD, suffix.x_BLD
    for index, layer in enumerate(model.layers):
        if cache is None:
            prefix_x, suffix_x = run_block(both, layer, prefix_x, suffix_x)
        else:
            suffix_x = run_suffix(layer, suffix_x, earlier=cache.prefix(index))[0]
    return (prefix_x if cache is None else None), suffix_x


class _Runner:
    """One layer on one segment; rotary tables are computed once for all layers."""

    def __init__(
        self,
        model: LlamaModel,
        segment: Segment,
        rotary: RotaryTables | None = None,
        read: ReadPlaces | None = None,
    ) -> None:
        self.rotary = model.rotary_emb(segment.x_BLD, segment.position_BL) if rotary is None else rotary
        self.mask = segment.mask
        self.causal = segment.causal and segment.mask is None
        self.read = read

    def __call__(self, layer: nn.Module, x_BLD: Tensor, **cached: Any) -> tuple[Tensor, Tensor, Tensor]:
        out: tuple[Tensor, Tensor, Tensor] = layer(
            x_BLD, self.rotary, self.mask, causal=self.causal, read=self.read, **cached
        )
        return out

    def hidden(self, layer: nn.Module, x_BLD: Tensor) -> Tensor:
        """The hidden states alone."""
        return self(layer, x_BLD)[0]
