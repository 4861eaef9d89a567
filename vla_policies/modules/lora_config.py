"""LoRA's settings, and an adapter's `adapter_config.json`, checked before peft acts on it: it may come from anywhere.

peft imports the module that `megatron_core` names, repeats layers, and decomposes base weights where its file says so;
nothing of that is read here. peft is not imported: most policies do without it, and it takes seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue, shown
from vla_gym.reading import read_json_object
from vla_policies.checkpoint_io.folder import ADAPTER_CONFIG, check_sizes

_READ = (
    *("r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "bias", "use_rslora"),
    *("fan_in_fan_out", "init_lora_weights", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern"),
    *("task_type", "peft_type", "base_model_name_or_path", "revision", "inference_mode"),
)
"""Settings that peft is given."""
_WITHOUT_EFFECT = (
    *("auto_mapping", "peft_version", "megatron_core", "runtime_config", "qalora_group_size"),
    *("eva_config", "loftq_config", "corda_config", "lora_ga_config"),
)
"""Settings of how training began, or of others that are refused."""
_STARTS = (True, False, "gaussian")
"""`init_lora_weights` that leave the base model's weights as they are."""
MOST_RANK = 2**16
_MOST_REPEATS = 3
"""Unbounded repeats in a pattern of module names; time grows as the length of a name to this power."""


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """Size and place of the adapters."""

    rank: int = 32
    """r, inner size."""
    alpha: int | None = None
    """Numerator of the scale alpha / r; None = min(rank, 16), as OpenVLA's recipe."""
    targets: tuple[str, ...] | str = ()
    """Names of the layers that get one (last parts, or a regular expression over whole names); () = the family's."""

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= MOST_RANK or not 1 <= self.scale_alpha <= MOST_RANK:
            raise BadValue(f"LoRA's rank and alpha must be in 1 .. {MOST_RANK}, got {self.rank} and {self.alpha}")
        _check_pattern(self.targets, "LoRA's targets")

    @property
    def scale_alpha(self) -> int:
        return min(self.rank, 16) if self.alpha is None else self.alpha


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """Return the folder's `adapter_config.json`; raise `BadValue` unless it is a LoRA's and names its base."""
    path = folder / ADAPTER_CONFIG
    values = read_json_object(path)
    if values.get("peft_type") != "LORA" or not values.get("base_model_name_or_path"):
        raise BadValue(f"'{path}' must have peft_type LORA, and name the adapter's model as base_model_name_or_path")
    return values


def adapter_settings(folder: Path, known: Iterable[str]) -> dict[str, Any]:
    """Return those of the `known` settings of peft's `LoraConfig` that the folder's adapter sets.

    Raises `BadValue` for others of them, and for patterns and sizes that would take for ever.
    """
    path, values = folder / ADAPTER_CONFIG, read_adapter_config(folder)
    refused = [name for name in {*known} - {*_READ, *_WITHOUT_EFFECT} if values.get(name)]
    refused += ["init_lora_weights"] if values.get("init_lora_weights", True) not in _STARTS else []
    for name in refused:
        raise BadValue(
            f"'{path}' sets {name} to {shown(values[name])}, which is not read here: merge the adapter with peft and "
            "open the merged folder"
        )
    check_sizes(values, path)
    ranks, alphas = (values.get(name) or {} for name in ("rank_pattern", "alpha_pattern"))
    whole = all(type(rank) is int and 1 <= rank <= MOST_RANK for rank in (values.get("r", 8), *ranks.values()))
    scales = (values.get("lora_alpha", 8), *alphas.values())
    if not whole or not all(type(alpha) in (int, float) and abs(alpha) <= MOST_RANK for alpha in scales):
        raise BadValue(f"'{path}': r, lora_alpha and their patterns must be numbers up to {MOST_RANK}, r from 1 on")
    for name in ("target_modules", "exclude_modules", "layers_pattern"):
        _check_pattern(values.get(name), f"{name} of '{path}'")
    for pattern in (*ranks, *alphas):
        _check_pattern(pattern, f"a pattern of '{path}'")
    return {name: values[name] for name in _READ if name in values}


def _check_pattern(pattern: object, where: str) -> None:
    """Raise `BadValue` for a pattern of names that may take for ever, as repeats of repeats do."""
    if pattern is None or (isinstance(pattern, list | tuple) and all(isinstance(name, str) for name in pattern)):
        return
    try:
        re.compile(pattern)  # type: ignore[call-overload]
    except (re.error, TypeError) as error:
        raise BadValue(f"{where} must be a pattern or a list of names, got {shown(pattern)}: {error}") from error
    plain = re.sub(r"\\.|\[\^?\]?[^\]]*\]", "x", str(pattern))  # escapes and classes of characters
    if len(plain) > 2000 or re.search(r"\)[*+{]", plain) or len(re.findall(r"[*+{]", plain)) > _MOST_REPEATS:
        raise BadValue(
            f"{where} may take for ever to match: {shown(pattern)}; it may repeat single characters only, at most "
            f"{_MOST_REPEATS} times. List the names of the modules instead"
        )
