"""Running transformers' Llama layer by layer: bidirectional, causal with a cache, or prefix and suffix together.

`decode_after` serves acting and training alike. The suffix reads the prefix's keys and values, whether they were
kept from a moment ago (acting) or are made again (training): the same operations on the same shapes, so that
both give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

from vla_policies.checkpointing import Remember


class Rotary(nn.Module):
    """Rotary position embedding without buffers: nothing to lose on the meta device or to bf16."""

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


class Keys:
    """One layer's keys and values of a prefix, and room for the tokens decoded after it.

    Stands in for transformers' cache: a layer calls `update` once per pass.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self.prefix: tuple[Tensor, Tensor] | None = None
        self._buffers: tuple[Tensor, Tensor] | None = None
        self._filled = 0
        self.joining = False

    def update(self, key: Tensor, value: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Keys and values `[B, heads, L, head_dim]` that the present tokens may look at."""
        if self.prefix is None:
            self.prefix = (key, value)
            return key, value
        if self.joining:
            return torch.cat([self.prefix[0], key], dim=2), torch.cat([self.prefix[1], value], dim=2)
        return self._append(key, value)

    def _append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        assert self.prefix is not None
        if self._buffers is None:
            # Written in place from here on: one copy of the prefix instead of one per token.
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
    """True where a query may look, broadcastable to `[B, 1, L, keys]`; None = no mask but `causal`."""
    causal: bool = False
    """Without a mask: each token sees only those before it (True) or all (False)."""


def build_llama(text_config: dict[str, Any]) -> LlamaForCausalLM:
    """The language model that an OpenVLA `text_config` describes; it stores only differences from the defaults."""
    values = {key: value for key, value in text_config.items() if key not in ("model_type", "torch_dtype")}
    config = LlamaConfig(**values)
    config._attn_implementation = "sdpa"
    model = LlamaForCausalLM(config)
    head_dim = config.hidden_size // config.num_attention_heads
    model.model.rotary_emb = Rotary(head_dim, config.rope_parameters["rope_theta"])
    return model


def run_layers(model: LlamaModel, segment: Segment, remember: Remember) -> Tensor:
    """Hidden states `[B, L, D]` before the final norm."""
    run = _Runner(model, segment)
    x_BLD = segment.x_BLD
    for layer in model.layers:
        x_BLD = remember(run, layer, x_BLD, None)
    return x_BLD


def prefill(model: LlamaModel, prefix: Segment, room: int) -> tuple[Tensor, list[Keys]]:
    """Hidden states of the prefix before the final norm, and its keys with `room` for later tokens."""
    run = _Runner(model, prefix)
    keys = [Keys(room) for _ in model.layers]
    x_BLD = prefix.x_BLD
    for layer, key in zip(model.layers, keys, strict=True):
        x_BLD = run(layer, x_BLD, key)
    return x_BLD, keys


def decode_step(model: LlamaModel, step: Segment, keys: list[Keys]) -> Tensor:
    """Hidden states of tokens that join the prefix, before the final norm; `keys` grows."""
    run = _Runner(model, step)
    x_BLD = step.x_BLD
    for layer, key in zip(model.layers, keys, strict=True):
        x_BLD = run(layer, x_BLD, key)
    return x_BLD


def decode_after(
    model: LlamaModel, prefix: Segment, suffix: Segment, keys: list[Keys] | None, remember: Remember
) -> tuple[Tensor | None, Tensor]:
    """Hidden states of prefix and suffix before the final norm, as if they were one causal sequence.

    With the `keys` of `prefill` the prefix is not run again, and its hidden states are None.
    """
    run_prefix, run_suffix = _Runner(model, prefix), _Runner(model, suffix)

    def both(layer: nn.Module, prefix_x: Tensor, suffix_x: Tensor) -> tuple[Tensor, Tensor]:
        key = Keys(0)
        prefix_x = run_prefix(layer, prefix_x, key)
        key.joining = True
        return prefix_x, run_suffix(layer, suffix_x, key)

    prefix_x, suffix_x = prefix.x_BLD, suffix.x_BLD
    for index, layer in enumerate(model.layers):
        if keys is None:
            prefix_x, suffix_x = remember(both, layer, prefix_x, suffix_x)
        else:
            keys[index].joining = True
            suffix_x = run_suffix(layer, suffix_x, keys[index])
    return (prefix_x if keys is None else None), suffix_x


class _Runner:
    """One layer on one segment: what all layers share is computed once."""

    def __init__(self, model: LlamaModel, segment: Segment) -> None:
        self.rotary = model.rotary_emb(segment.x_BLD, segment.position_BL)
        self.mask = segment.mask
        self.causal = segment.causal and segment.mask is None

    def __call__(self, layer: nn.Module, x_BLD: Tensor, keys: Keys | None) -> Tensor:
        out: Tensor = layer(
            x_BLD,
            attention_mask=self.mask,
            past_key_values=keys,
            position_embeddings=self.rotary,
            is_causal=self.causal,
        )
        return out
