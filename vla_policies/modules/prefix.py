"""Images and text encoded once, for a flow head to attend to: a pass of the VLM's layers, and its rows apart.

Letters as in `modules.gemma`; W is the VLM's width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from vla_policies.modules.activation_checkpointing import checkpoint_fn
from vla_policies.modules.feature_cache import Row
from vla_policies.modules.gemma import KeyValue, rotary_embedding
from vla_policies.transfer import upload


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
    padded, mask_BL = not bool(mask_BL.all()), upload(mask_BL, x_BLW.device)
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


def split_prefix(prefix: Prefix) -> list[Row]:
    """Split B observations into rows: the real tokens' keys and values `[L, C, F]` of every layer in turn, and last
    their hidden states `[L, W]` where the prefix has them."""
    length_B = prefix.mask_BL.sum(dim=1).tolist()
    tensors = [x for layer in prefix.layers for x in (layer.key_BCLF, layer.value_BCLF)]
    return [
        (
            *(x[place, :, :length].transpose(0, 1) for x in tensors),
            *(() if prefix.hidden_BLW is None else (prefix.hidden_BLW[place, :length],)),
        )
        for place, length in enumerate(length_B)
    ]


def join_prefixes(rows: Sequence[Row]) -> Prefix:
    """Inverse of `split_prefix`; padding, at the end of the shorter ones, is zeros."""
    columns = [pad_sequence(list(column), batch_first=True) for column in zip(*rows, strict=True)]
    length_B = torch.tensor([len(row[0]) for row in rows], device=columns[0].device)
    hidden_BLW: Tensor | None = columns.pop() if len(columns) % 2 else None
    place_L = torch.arange(columns[0].shape[1], device=length_B.device)
    pairs = zip(columns[::2], columns[1::2], strict=True)
    layers = (KeyValue(key.transpose(1, 2), value.transpose(1, 2)) for key, value in pairs)
    return Prefix(tuple(layers), place_L < length_B[:, None], hidden_BLW)


def masked_mean(x_BLD: Tensor, mask_BL: Tensor) -> Tensor:
    """Mean over the real tokens, float32 `[B, D]`."""
    weight_BL1 = mask_BL[..., None].float()
    return (x_BLD.float() * weight_BL1).sum(dim=1) / weight_BL1.sum(dim=1)
