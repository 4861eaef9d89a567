"""Weight files as models publish them: safetensors in one file or in shards, and torch's own `.pt`.

Everything is strict: a missing shard, a truncated file, a tensor that is missing, left over or of another
shape raises `BadValue` in one line. `.pt` files are read with `weights_only=True`, so nothing is unpickled
but tensors.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vla_gym.errors import BadValue
from vla_policies.checkpoint_io.weights import WEIGHTS_FILE, check_tensors

INDEX_FILE = WEIGHTS_FILE + ".index.json"
SHARD_BYTES = 5 * 10**9
"""Largest file that `write_tensors` makes, as on the Hub."""
_SHARDS = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors, one file or all shards of the index; what is missing raises."""
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    if not (folder / INDEX_FILE).is_file():
        raise BadValue(f"checkpoint folder '{folder}' lacks {WEIGHTS_FILE} (or {INDEX_FILE} and its shards)")
    try:
        index = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
        names = sorted(set(index["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadValue(f"'{folder / INDEX_FILE}' is no index of shards: {error!r}") from error
    for name in names:
        if Path(name).name != name:
            raise BadValue(f"'{folder / INDEX_FILE}' points outside its folder: '{name}'")
        if not (folder / name).is_file():
            raise BadValue(f"checkpoint folder '{folder}' lacks the shard {name} that {INDEX_FILE} lists")
    return [folder / name for name in names]


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of one file."""
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise BadValue(f"'{path}' cannot be read as safetensors: {error}") from error


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of the folder."""
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        tensors |= read_safetensors(path)
    return tensors


def read_pt(path: Path) -> dict[str, Tensor]:
    """A torch state dict, the `module.` of data-parallel training taken off its keys."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling reports damage by many types, none of them of one base
        raise BadValue(f"'{path}' cannot be read as tensors: {_first_line(error)}") from error
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise BadValue(f"'{path}' must hold a mapping of names to tensors, got {type(state).__name__}")
    return {str(name).removeprefix("module."): tensor for name, tensor in state.items()}


def one_file(folder: Path, pattern: str) -> Path | None:
    """The only file that matches, None when there is none; several raise."""
    found = sorted(folder.glob(pattern))
    if len(found) > 1:
        raise BadValue(
            f"'{folder}' has {len(found)} files like {pattern}: {', '.join(p.name for p in found)}"
        )
    return found[0] if found else None


def fill(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    where: Path,
    dtype_of: Callable[[str], torch.dtype],
) -> None:
    """Give `module` (which may be on the meta device) exactly these tensors, cast to `dtype_of(name)`."""
    check_tensors(where, tensors, module.state_dict())
    cast = {name: tensor.to(dtype_of(name), copy=True) for name, tensor in tensors.items()}
    module.load_state_dict(cast, strict=True, assign=True)


def write_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write `model.safetensors`, or shards and their index above `SHARD_BYTES`; none of an earlier kind stay."""
    plan = split_torch_state_dict_into_shards(
        dict(tensors), filename_pattern="model{suffix}.safetensors", max_shard_size=SHARD_BYTES
    )
    for name, keys in plan.filename_to_tensors.items():
        write_safetensors(folder / name, {key: tensors[key] for key in keys})
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        write_text(folder / INDEX_FILE, json.dumps(index, indent=2) + "\n")
    else:
        (folder / INDEX_FILE).unlink(missing_ok=True)
    for path in folder.iterdir():
        stale = _SHARDS.fullmatch(path.name) or path.name == WEIGHTS_FILE
        if stale and path.name not in plan.filename_to_tensors:
            path.unlink()


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write one file under a temporary name until it is complete."""
    partial = path.with_name(path.name + ".partial")
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(plain, partial, metadata={"format": "pt"})
    os.replace(partial, path)


def write_text(path: Path, content: str) -> None:
    """Write one text file under a temporary name until it is complete."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(content, encoding="utf-8")
    os.replace(partial, path)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
