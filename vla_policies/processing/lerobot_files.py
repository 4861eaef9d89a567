"""Files of lerobot's policies beside the weights: `config.json`'s features, and the pre- and postprocessor.

A processor is a JSON list of steps; the step that normalises names the file of its statistics, flat tensors such as
`observation.state.mean`. As lerobot 0.4 writes and reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vla_gym.errors import BadValue, shown
from vla_gym.reading import read_json_object
from vla_policies.checkpoint_io.weights import read_safetensors, write_json, write_safetensors
from vla_policies.processing.statistics import Normalization, Statistics, statistics_of_numbers

PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor", "policy_postprocessor"
STATE, ACTION = "observation.state", "action"
EPSILON = 1e-8
"""Added to a standard deviation when normalising, and not when going back."""
DATA_SET = "default"
"""Name of the one data set whose statistics a folder has."""
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


def lerobot_statistics(folder: Path) -> dict[str, dict[str, Statistics]]:
    """Data set -> "state" and "action" -> statistics, from the file that the preprocessor names; one data set."""
    path = _statistics_file(folder)
    if path is None:
        return {}
    flat = read_safetensors(path)
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
    steps = read_json_object(path).get("steps", [])
    names = [str(step["state_file"]) for step in steps if isinstance(step, Mapping) and step.get("state_file")]
    for name in names:
        if Path(name).name != name:
            raise BadValue(f"'{path}' points outside its folder: '{name}'")
        if (folder / name).is_file():
            return folder / name
    if names:
        raise BadValue(f"'{folder}' lacks {names[0]}, the statistics that {path.name} names")
    return None


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
