"""A prefix of B observations as B rows that can be kept one by one, and rows joined again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vla_policies.modules.feature_cache import Row
from vla_policies.modules.gemma import KeyValue
from vla_policies.pi0.network import Prefix


def split_prefix(prefix: Prefix) -> list[Row]:
    """Of each observation, its real tokens' keys and values `[L, C, F]` of every layer in turn, and last its hidden
    states `[L, W]` where the prefix has them."""
    length_B = prefix.mask_BL.sum(dim=1).tolist()
    tensors = [one for layer in prefix.layers for one in (layer.key_BCLF, layer.value_BCLF)]
    return [
        (
            *(one[place, :, :length].transpose(0, 1) for one in tensors),
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
