"""The `adapter_config.json` of a LoRA adapter, which may come from anywhere: checked before peft acts on it.

peft imports the module that `megatron_core` names, repeats layers, and decomposes base weights where its file says so;
nothing of that is read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue, check_integer, shown
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


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """The folder's `adapter_config.json`; raises unless it is a LoRA's and names its base."""
    path = folder / ADAPTER_CONFIG
    values = read_json_object(path)
    if values.get("peft_type") != "LORA":
        raise BadValue(f"'{path}' describes no LoRA adapter")
    if not values.get("base_model_name_or_path"):
        raise BadValue(f"'{path}' does not say base_model_name_or_path, the model the adapter belongs to")
    return values


def adapter_settings(folder: Path, known: Iterable[str]) -> dict[str, Any]:
    """Those of the `known` settings of peft's `LoraConfig` that the folder's adapter sets and that are read here.

    Raises `BadValue` for others of them, and for patterns and sizes that would take for ever. peft is not imported:
    most policies do without it, and it takes seconds.
    """
    path, values = folder / ADAPTER_CONFIG, read_adapter_config(folder)
    for name in {*known} - {*_READ, *_WITHOUT_EFFECT}:
        if values.get(name):
            raise BadValue(
                f"'{path}' sets {name} to {shown(values[name])}, which is not read here: merge it with peft and open "
                "the merged folder"
            )
    if values.get("init_lora_weights", True) not in _STARTS:
        raise BadValue(f"'{path}' has init_lora_weights {shown(values['init_lora_weights'])}: convert it to plain LoRA")
    check_sizes(values, path)
    check_integer(f"r of '{path}'", values.get("r", 8), 1, MOST_RANK)
    ranks, alphas = (values.get(name) or {} for name in ("rank_pattern", "alpha_pattern"))
    for name, alpha in {"lora_alpha": values.get("lora_alpha", 8), **alphas}.items():
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not -MOST_RANK <= alpha <= MOST_RANK:
            raise BadValue(f"{shown(name)} of '{path}' must be a number of at most {MOST_RANK}, got {shown(alpha)}")
    for name, rank in ranks.items():
        check_integer(f"the rank of {shown(name)} in '{path}'", rank, 1, MOST_RANK)
    patterns = [(name, values.get(name)) for name in ("target_modules", "exclude_modules", "layers_pattern")]
    for name, pattern in (*patterns, *(("a pattern", pattern) for pattern in (*ranks, *alphas))):
        check_pattern(pattern, f"{name} of '{path}'")
    return {name: values[name] for name in _READ if name in values}


def check_pattern(pattern: object, where: str) -> None:
    """Raise `BadValue` for a pattern of names that may take for ever, as repeats of repeats do."""
    if pattern is None or (isinstance(pattern, list) and all(isinstance(name, str) for name in pattern)):
        return
    if not isinstance(pattern, str):
        raise BadValue(f"{where} must be a pattern or a list of names, got {shown(pattern)}")
    plain = re.sub(r"\\.|\[\^?\]?[^\]]*\]", "x", pattern)  # escapes and classes of characters
    if len(pattern) > 2000 or re.search(r"\)[*+{]", plain) or len(re.findall(r"[*+{]", plain)) > _MOST_REPEATS:
        raise BadValue(
            f"{where} may take for ever to match: {shown(pattern)}; it may repeat single characters only, at most "
            f"{_MOST_REPEATS} times. List the names of the modules instead"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise BadValue(f"{where} is no pattern: {error}") from error
