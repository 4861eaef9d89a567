"""Checkpoint folders: `config.json` + `model.safetensors`. Loading is strict, and nothing is ever unpickled.

A folder that lacks a file, a tensor that is missing, left over or of another shape: each raises and is
named. Weights never stay at their random values in silence.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vla_gym.errors import BadValue

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


def read_config(folder: Path, name: str = CONFIG_FILE) -> dict[str, Any]:
    """The folder's `config.json` (or another JSON object); raises `BadValue` naming what the folder lacks."""
    path = _require(folder, name)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadValue(f"'{path}' is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise BadValue(f"'{path}' must hold a JSON object, got {type(config).__name__}")
    return config


def write_checkpoint(folder: Path, config: Mapping[str, Any], module: nn.Module) -> None:
    """Write both files, the weights first, each under a temporary name until complete."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    partial = folder / (WEIGHTS_FILE + ".partial")
    save_file(tensors, partial, metadata={"format": "pt"})
    os.replace(partial, folder / WEIGHTS_FILE)
    partial = folder / (CONFIG_FILE + ".partial")
    partial.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, folder / CONFIG_FILE)


def load_weights(folder: Path, module: nn.Module) -> None:
    """Fill `module` from the folder's `model.safetensors`, every tensor and no other."""
    path = _require(folder, WEIGHTS_FILE)
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise BadValue(f"'{path}' cannot be read as safetensors: {error}") from error
    check_tensors(path, tensors, module.state_dict())
    module.load_state_dict(tensors, strict=True)


def _require(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise BadValue(
            f"checkpoint folder '{folder}' lacks {name}; it must hold {CONFIG_FILE} and {WEIGHTS_FILE}"
        )
    return folder / name


def check_tensors(path: Path, got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Raise `BadValue` unless both hold the same names and shapes; what differs is named."""
    faults = []
    if missing := sorted(wanted.keys() - got.keys()):
        faults.append(f"missing {_listed(missing)}")
    if unexpected := sorted(got.keys() - wanted.keys()):
        faults.append(f"unexpected {_listed(unexpected)}")
    for name in sorted(wanted.keys() & got.keys()):
        if got[name].shape != wanted[name].shape:
            faults.append(
                f"'{name}' is {tuple(got[name].shape)}, the model needs {tuple(wanted[name].shape)}"
            )
    if faults:
        raise BadValue(f"'{path}' does not fit its {CONFIG_FILE}: {'; '.join(faults[:8])}")


def _listed(names: list[str], show: int = 6) -> str:
    more = f" and {len(names) - show} more" if len(names) > show else ""
    return ", ".join(f"'{name}'" for name in names[:show]) + more
