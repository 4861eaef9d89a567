"""A caller's observations -> batched tensors: one or many, text or bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_gym.errors import BadValue, shown, unknown_name
from vla_gym.observation import decode_instruction, encode_instruction
from vla_policies.conventions import Conventions
from vla_policies.devices import upload

HOST_KEYS = ("instruction", "state")
"""Parts that are read on the CPU: words become tokens there, and a state may become words."""


def batch_observation(obs: Any, conventions: Conventions) -> tuple[dict[str, Tensor], bool]:
    """The policy's inputs as tensors `[B, ...]`, images where they were, and whether `obs` is a batch.

    `instruction` may be a `str`, a sequence of `str`, or UTF-8 bytes `[160]` / `[B, 160]`. Raises `BadValue`
    or `UnknownName` naming the key that is missing or of the wrong rank.
    """
    if not isinstance(obs, Mapping):
        raise BadValue(f"an observation is a dict with 'image' and 'instruction', got {type(obs).__name__}")
    ranks = dict.fromkeys(conventions.cameras, 3)
    if conventions.state_dim:
        ranks["state"] = 1
    ranks["instruction"] = 1
    tensors: dict[str, Tensor] = {}
    batched: dict[str, bool] = {}
    for key, rank in ranks.items():
        if key not in obs:
            raise unknown_name("observation key", key, obs)
        value = _instruction_bytes(obs[key]) if key == "instruction" else obs[key]
        tensor = torch.as_tensor(value)
        tensor = tensor.cpu() if key in HOST_KEYS else tensor
        batched[key] = tensor.ndim == rank + 1
        tensors[key] = tensor if batched[key] else tensor[None]
        if tensors[key].ndim != rank + 1:
            raise BadValue(f"'{key}' must have {rank} dims (one observation) or {rank + 1}, got {tuple(tensor.shape)}")
    sizes = {key: len(tensor) for key, tensor in tensors.items()}
    if len(set(batched.values())) > 1 or len(set(sizes.values())) > 1:
        raise BadValue(f"the observation's parts are not of one batch: {sizes}, batched: {batched}")
    state, dims = tensors.get("state"), conventions.state_dim
    if state is not None and (state.shape[1] != dims or not torch.isfinite(state).all()):
        raise BadValue(f"'state' must have {dims} finite numbers, got {shown(state.tolist())}")
    return tensors, batched["instruction"]


def on_device(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The batch with its images on `device`."""
    return {key: x if key in HOST_KEYS else upload(x, device) for key, x in batch.items()}


def observation_keys(batch: Mapping[str, Tensor]) -> tuple[bytes, ...]:
    """A digest of each of the B observations of a batch `[B, ...]`: of its bytes, 128 bits."""
    arrays = [batch[name].cpu().contiguous().numpy() for name in sorted(batch)]
    keys = []
    for row in zip(*arrays, strict=True):
        digest = hashlib.blake2b(digest_size=16)
        for array in row:
            digest.update(array)
        keys.append(digest.digest())
    return tuple(keys)


def decode_instructions(bytes_BL: Tensor) -> list[str]:
    """Instructions of B observations, from their UTF-8 bytes `[B, 160]`."""
    try:
        return [decode_instruction(row) for row in bytes_BL.to("cpu", torch.uint8).numpy()]
    except UnicodeDecodeError as error:
        raise BadValue(f"the instruction is not UTF-8 text: {error}") from error


def _instruction_bytes(value: Any) -> Any:
    if isinstance(value, str):
        return encode_instruction(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "OU":
        value = value.tolist()
        if isinstance(value, str):
            return encode_instruction(value)
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return np.stack([encode_instruction(item) for item in value])
    return value
