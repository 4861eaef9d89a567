"""Running transformers' Llama layer by layer: bidirectional, causal with a cache, or prefix and suffix together.

By hand, not transformers' own loop over the layers: its cached decoding rounds differently from its full pass, and
the ratio before the first update must be exactly 1. `decode_after` serves acting and training alike: the suffix
attends to the prefix's keys and values, cached (acting) or computed again (training), by the same operations on the
same shapes, so that both give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

from vla_policies.modules.activation_checkpointing import CheckpointFn


class Rotary(nn.Module):
    """Rotary position embedding without buffers, which the meta device or bf16 would spoil."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.theta = theta

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[B, L, head_dim]` in the dtype of `x`."""
        power = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=x.device) / self.head_dim
        angle = position_ids[..., None].float() * (1.0 / self.theta**power)
        angle = torch.cat([angle, angle], dim=-1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


class KVCache:
    """One layer's keys and values of a prefix, and room for the tokens decoded after it.

    Has the `update` of transformers' caches, which a layer calls once per pass.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self.prefix: tuple[Tensor, Tensor] | None = None
        self._buffers: tuple[Tensor, Tensor] | None = None
        self._filled = 0
        self.joining = False

    def update(self, key: Tensor, value: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Keys and values `[B, heads, L, head_dim]` that the present tokens may attend to."""
        if self.prefix is None:
            self.prefix = (key, value)
            return key, value
        if self.joining:
            return torch.cat([self.prefix[0], key], dim=2), torch.cat([self.prefix[1], value], dim=2)
        return self._append(key, value)

    def _append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        assert self.prefix is not None
        if self._buffers is None:
            # Later tokens are written in place: one copy of the prefix instead of one per token.
            self._filled = self.prefix[0].shape[2]
            self._buffers = (self._with_room(self.prefix[0]), self._with_room(self.prefix[1]))
        end = self._filled + key.shape[2]
        for buffer, new in zip(self._buffers, (key, value), strict=True):
            buffer[:, :, self._filled : end] = new
        self._filled = end
        return self._buffers[0][:, :, :end], self._buffers[1][:, :, :end]

    def _with_room(self, x: Tensor) -> Tensor:
        out = x.new_empty(*x.shape[:2], x.shape[2] + self.room, x.shape[3])
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
    values = {key: value for key, value in text_config.items() if key not in ("model_type", "torch_dtype")}
    config = LlamaConfig(**values)
    config._attn_implementation = "sdpa"
    model = LlamaForCausalLM(config)
    head_dim = config.hidden_size // config.num_attention_heads
    model.model.rotary_emb = Rotary(head_dim, config.rope_parameters["rope_theta"])
    return model


def run_layers(
    model: LlamaModel, segment: Segment, run_block: CheckpointFn, layers: Iterable[nn.Module] | None = None
) -> Tensor:
    """Hidden states `[B, L, D]` before the final norm, after all `layers` (default: the model's)."""
    run = _Runner(model, segment)
    x_BLD = segment.x_BLD
    for layer in model.layers if layers is None else layers:
        x_BLD = run_block(run, layer, x_BLD, None)
    return x_BLD


def run_layers_at(model: LlamaModel, segment: Segment, read_BS: Tensor, run_block: CheckpointFn) -> Tensor:
    """As `run_layers`, but only the hidden states at places `read_BS` (indices into the segment), `[B, S, D]`.

    The last layer computes keys and values of the other tokens only: no queries, output projection and MLP.
    """
    x_BLD = run_layers(model, segment, run_block, layers=model.layers[:-1])
    return run_block(_LastLayer(model, segment, read_BS), model.layers[-1], x_BLD)


class _LastLayer:
    """A layer whose output is needed at some places only; transformers' arithmetic in the same order."""

    def __init__(self, model: LlamaModel, segment: Segment, read_BS: Tensor) -> None:
        if segment.causal:
            raise ValueError("reading at some places only is for segments where all tokens attend to each other")
        self.read_BS = read_BS
        self.mask = segment.mask
        self.rotary = model.rotary_emb(segment.x_BLD, segment.position_BL)
        self.read_rotary = model.rotary_emb(segment.x_BLD, segment.position_BL.gather(1, read_BS))

    def __call__(self, layer: Any, x_BLD: Tensor) -> Tensor:
        attention = layer.self_attn
        # Layers may lie on other devices; this one is where the inputs were.
        x_BLD = x_BLD.to(self.read_BS.device)
        read_BSD = x_BLD.gather(1, self.read_BS[..., None].expand(-1, -1, x_BLD.shape[2]))
        normed_BLD = layer.input_layernorm(x_BLD)
        normed_BSD = normed_BLD.gather(1, self.read_BS[..., None].expand_as(read_BSD))
        query = _rotated(_heads(attention.q_proj(normed_BSD), attention.head_dim), self.read_rotary)
        key = _rotated(_heads(attention.k_proj(normed_BLD), attention.head_dim), self.rotary)
        value = _heads(attention.v_proj(normed_BLD), attention.head_dim)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, self.mask, scale=attention.scaling, enable_gqa=query.shape[1] != key.shape[1]
        )
        read_BSD = read_BSD + attention.o_proj(mixed.transpose(1, 2).flatten(2))
        out: Tensor = read_BSD + layer.mlp(layer.post_attention_layernorm(read_BSD))
        return out


def _heads(x_BLD: Tensor, head_dim: int) -> Tensor:
    return x_BLD.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def _rotated(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """`[B, heads, L, head_dim]` turned by its places, halves paired as Llama pairs them."""
    cos, sin = (table[:, None] for table in rotary)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def prefill(model: LlamaModel, prefix: Segment, room: int) -> tuple[Tensor, list[KVCache]]:
    """Hidden states of the prefix before the final norm, and its caches with `room` for later tokens."""
    run = _Runner(model, prefix)
    caches = [KVCache(room) for _ in model.layers]
    x_BLD = prefix.x_BLD
    for layer, cache in zip(model.layers, caches, strict=True):
        x_BLD = run(layer, x_BLD, cache)
    return x_BLD, caches


def decode_step(model: LlamaModel, step: Segment, caches: list[KVCache]) -> Tensor:
    """Hidden states of tokens that join the prefix, before the final norm; `caches` grow."""
    run = _Runner(model, step)
    x_BLD = step.x_BLD
    for layer, cache in zip(model.layers, caches, strict=True):
        x_BLD = run(layer, x_BLD, cache)
    return x_BLD


def decode_after(
    model: LlamaModel, prefix: Segment, suffix: Segment, caches: list[KVCache] | None, run_block: CheckpointFn
) -> tuple[Tensor | None, Tensor]:
    """Hidden states of prefix and suffix before the final norm, as if they were one causal sequence.

    With the `caches` of `prefill` the prefix is not run again, and its hidden states are None.
    """
    run_prefix, run_suffix = _Runner(model, prefix), _Runner(model, suffix)

    def both(layer: nn.Module, prefix_x: Tensor, suffix_x: Tensor) -> tuple[Tensor, Tensor]:
        cache = KVCache(0)
        prefix_x = run_prefix(layer, prefix_x, cache)
        cache.joining = True
        return prefix_x, run_suffix(layer, suffix_x, cache)

    prefix_x, suffix_x = prefix.x_BLD, suffix.x_BLD
    for index, layer in enumerate(model.layers):
        if caches is None:
            prefix_x, suffix_x = run_block(both, layer, prefix_x, suffix_x)
        else:
            caches[index].joining = True
            suffix_x = run_suffix(layer, suffix_x, caches[index])
    return (prefix_x if caches is None else None), suffix_x


class _Runner:
    """One layer on one segment; rotary tables are computed once for all layers."""

    def __init__(self, model: LlamaModel, segment: Segment) -> None:
        self.rotary = model.rotary_emb(segment.x_BLD, segment.position_BL)
        self.mask = segment.mask
        self.causal = segment.causal and segment.mask is None

    def __call__(self, layer: nn.Module, x_BLD: Tensor, cache: KVCache | None) -> Tensor:
        out: Tensor = layer(
            x_BLD,
            attention_mask=self.mask,
            past_key_values=cache,
            position_embeddings=self.rotary,
            is_causal=self.causal,
        )
        return out
