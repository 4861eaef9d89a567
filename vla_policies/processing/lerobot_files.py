"""Files of lerobot's policies beside the weights: `config.json`'s features, and the pre- and postprocessor.

A processor is a JSON list of steps; the step that normalises names the file of its statistics, flat tensors such as
`observation.state.mean`. As lerobot 0.4 writes and reads them; before, statistics were among the weights.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vla_gym.errors import BadValue, shown, unknown_name
from vla_gym.reading import read_json_object
from vla_policies.checkpoint_io.folder import CONFIG_FILE, read_once, write_json
from vla_policies.checkpoint_io.json_records import as_annotated
from vla_policies.checkpoint_io.weights import read_safetensors, read_shapes, read_tensors, write_safetensors
from vla_policies.processing.statistics import Normalization, Statistics, statistics_of_numbers

PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor", "policy_postprocessor"
STATE, ACTION = "observation.state", "action"
RELATIVE, ABSOLUTE = "relative_actions_processor", "absolute_actions_processor"
"""Steps that take the state from actions before the network, and add it after."""
STEPS = (
    *("rename_observations_processor", "to_batch_processor", "device_processor", "tokenizer_processor"),
    *("normalizer_processor", "unnormalizer_processor", RELATIVE, ABSOLUTE),
    *("pi0_new_line_processor", "smolvla_new_line_processor", "pi05_prepare_state_tokenizer_processor_step"),
)
"""Steps that a policy here does itself."""
EPSILON = 1e-8
"""Added to a standard deviation when normalising, and not when going back."""
DATA_SET = "default"
"""Name of the one data set whose statistics a folder has."""
_BUFFER = re.compile(
    r"(normalize_inputs|normalize_targets|unnormalize_outputs)\."
    r"(so\d+(-\w+)?_)?buffer_(?P<part>observation_state|action|\w+)\.(?P<name>\w+)"
)
"""Statistics among the weights, before lerobot 0.4; files trained on several robots name one of them."""
_NORMALIZATIONS: dict[str, Normalization | None] = {
    "MEAN_STD": "mean_std",
    "QUANTILES": "quantiles",
    "IDENTITY": None,
}
"""lerobot's `normalization_mapping` to `Preprocessing.normalization`; None = not normalised."""


def normalizations(config: Mapping[str, Any], usual: Normalization, where: str) -> dict[str, Normalization | None]:
    """Normalisation of "state" and "action", None = none; `usual` without a mapping.

    As in lerobot, a part that is absent from the mapping is not normalised.
    """
    if "normalization_mapping" not in config:
        return {"state": usual, "action": usual}
    mapping = config["normalization_mapping"]
    if not isinstance(mapping, Mapping):
        raise BadValue(f"{where}: normalization_mapping must be a mapping, got {shown(mapping)}")
    for part, kind in mapping.items():
        allowed = tuple(_NORMALIZATIONS) if part in ("STATE", "ACTION") else ("IDENTITY",)
        if kind not in allowed:
            raise BadValue(f"{where}: normalization_mapping {part} must be one of {', '.join(allowed)}, got '{kind}'")
    kinds = {part: _NORMALIZATIONS[mapping.get(part.upper(), "IDENTITY")] for part in ("state", "action")}
    if None not in kinds.values() and kinds["state"] != kinds["action"]:
        raise BadValue(
            f"{where}: normalization_mapping must be the same for STATE and ACTION, or IDENTITY for one of them, "
            f"got {mapping['STATE']} and {mapping['ACTION']}"
        )
    return kinds


def processor_steps(folder: Path, name: str) -> list[Mapping[str, Any]]:
    """The enabled steps of a folder's pre- or postprocessor; one that is not known here raises."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return []
    steps = [
        step
        for step in read_once(path, read_json_object).get("steps", [])
        if step.get("config", {}).get("enabled", True)
    ]
    for step in steps:
        kind = str(step.get("registry_name", step.get("class")))
        if kind not in STEPS:
            raise unknown_name(f"processor step in '{path}'", kind, STEPS)
    return steps


def relative_dims(folder: Path, config: Mapping[str, Any], action_dim: int) -> int:
    """The number of leading dims of an action that are relative to the state at the decision.

    `config.json` and the two processors must agree on whether there are any, and no other dims may be so.
    """
    said = {f"use_relative_actions of {CONFIG_FILE}": bool(config.get("use_relative_actions"))}
    settings = {
        "exclude_joints": config.get("relative_exclude_joints", ["gripper"]),
        "action_names": config.get("action_feature_names"),
    }
    for name, kind in ((PREPROCESSOR, RELATIVE), (POSTPROCESSOR, ABSOLUTE)):
        if (folder / f"{name}.json").is_file():
            steps = [step["config"] for step in processor_steps(folder, name) if step.get("registry_name") == kind]
            said[f"{kind} of {name}.json"] = bool(steps)
            settings |= steps[0] if steps and kind == RELATIVE else {}
    if len(set(said.values())) > 1:
        parts = ", ".join(f"{part} is {json.dumps(on)}" for part, on in said.items())
        raise BadValue(f"'{folder}' does not agree on whether its actions are relative: {parts}; set all alike")
    if not any(said.values()):
        return 0
    excluded, names = settings["exclude_joints"], settings["action_names"]
    mask = relative_mask(
        action_dim,
        as_annotated(tuple[str, ...], excluded, f"exclude_joints of '{folder}'"),
        as_annotated(tuple[str, ...] | None, names, f"action_names of '{folder}'"),
    )
    count = sum(mask)
    if any(mask[count:]):
        raise BadValue(f"'{folder}': relative actions must be the first ones of an action, got {json.dumps(mask)}")
    return count


def relative_mask(action_dim: int, excluded: Sequence[str], names: Sequence[str] | None) -> list[bool]:
    """Whether each number of an action is relative in lerobot: all but those whose name holds an excluded word."""
    words = [word.lower() for word in excluded if word]
    named = [not any(word in name.lower() for word in words) for name in (names or ())[:action_dim]]
    return named + [True] * (action_dim - len(named))


def lerobot_statistics(folder: Path) -> dict[str, dict[str, Statistics]]:
    """Data set -> "state" and "action" -> statistics, from the file that the preprocessor names; one data set."""
    path = _statistics_file(folder)
    if path is None:
        return {}
    flat = read_once(path, read_safetensors)
    found = {}
    for part, prefix in (("state", STATE + "."), ("action", ACTION + ".")):
        numbers = {name.removeprefix(prefix): x.tolist() for name, x in flat.items() if name.startswith(prefix)}
        if numbers:
            found[part] = statistics_of_numbers(numbers)
    return {DATA_SET: found} if found else {}


def _statistics_file(folder: Path) -> Path | None:
    """The file that the step which normalises names; without a preprocessor, one that is called like it."""
    path = folder / f"{PREPROCESSOR}.json"
    if not path.is_file():
        return next(iter(sorted(folder.glob(f"{PREPROCESSOR}*normalizer*.safetensors"))), None)
    names = [str(step["state_file"]) for step in processor_steps(folder, PREPROCESSOR) if step.get("state_file")]
    for name in names:
        if Path(name).name != name:
            raise BadValue(f"'{path}' points outside its folder: '{name}'")
        if (folder / name).is_file():
            return folder / name
    if names:
        raise BadValue(f"'{folder}' lacks {names[0]}, the statistics that {path.name} names")
    return None


def is_statistic(name: str) -> bool:
    """Whether a tensor among the weights is a statistic, as before lerobot 0.4."""
    return _BUFFER.fullmatch(name) is not None


def statistics_in_weights(folder: Path) -> dict[str, dict[str, Statistics]]:
    """Statistics among the weights, the first robot's; unset ones, which are infinite, are left out."""
    if not any(map(is_statistic, read_shapes(folder))):
        return {}
    numbers: dict[str, dict[str, list[float]]] = {"state": {}, "action": {}}
    for name, tensor in read_tensors(folder, skip=lambda name: not is_statistic(name), finite=False).items():
        found = _BUFFER.fullmatch(name)
        assert found is not None
        part = {"observation_state": "state", "action": "action"}.get(found["part"])
        if part is not None and bool(torch.isfinite(tensor).all()):
            numbers[part].setdefault(found["name"], tensor.float().tolist())
    chosen = {part: statistics_of_numbers(found) for part, found in numbers.items() if found}
    return {DATA_SET: chosen} if chosen else {}


def feature_dims(config: Mapping[str, Any], side: str, name: str, statistics: Any, otherwise: int) -> int:
    if statistics is not None:
        return max(len(statistics.mean), len(statistics.q01))
    shape = config.get(side, {}).get(name, {}).get("shape")
    return int(shape[0]) if shape else otherwise


def write_processors(
    folder: Path,
    steps: tuple[list[dict[str, Any]], list[dict[str, Any]]],
    statistics: Mapping[str, Statistics | None],
) -> None:
    """Write pre- and postprocessor; in each, the step with a `features` setting normalises and gets the statistics."""
    for name, chain in zip((PREPROCESSOR, POSTPROCESSOR), steps, strict=True):
        for index, step in enumerate(chain):
            if "features" in step["config"]:
                step["state_file"] = f"{name}_step_{index}_{step['registry_name']}.safetensors"
                write_safetensors(folder / step["state_file"], _flat(statistics))
        write_json(folder / f"{name}.json", {"name": name, "steps": chain})


def _flat(statistics: Mapping[str, Statistics | None]) -> dict[str, Tensor]:
    parts = {STATE: statistics["state"], ACTION: statistics["action"]}
    return {
        f"{part}.{name}": torch.tensor(numbers)
        for part, found in parts.items()
        if found is not None
        for name, numbers in asdict(found).items()
        if numbers
    }
