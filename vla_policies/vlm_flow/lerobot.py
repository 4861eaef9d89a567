"""Files of lerobot's policies beside the weights: `config.json`'s features, and the pre- and postprocessor.

A processor is a JSON list of steps; the step that normalises names the file of its statistics, flat tensors such as
`observation.state.mean`. As lerobot 0.4 writes and reads them; before, statistics were among the weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vla_gym.errors import BadValue, unknown_name
from vla_gym.reading import read_json_object
from vla_policies.checkpoint_io.folder import CONFIG_FILE, read_once, write_json
from vla_policies.checkpoint_io.json_records import as_annotated
from vla_policies.checkpoint_io.weights import read_safetensors, read_shapes, read_tensors, write_safetensors
from vla_policies.conventions import CAMERA_KEYS, Conventions
from vla_policies.model_folder import Request
from vla_policies.processing.statistics import Normalization, Statistics, check_dims, statistics_of_numbers
from vla_policies.vlm_flow.config import VLMFlowConfig

PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor", "policy_postprocessor"
STATE, ACTION = "observation.state", "action"
STEPS = (
    *("rename_observations_processor", "to_batch_processor", "device_processor", "tokenizer_processor"),
    *("normalizer_processor", "unnormalizer_processor"),
    *("pi0_new_line_processor", "smolvla_new_line_processor", "pi05_prepare_state_tokenizer_processor_step"),
)
"""Steps that a policy here does itself."""
UNSUPPORTED = ("adapt_to_pi_aloha", "use_delta_joint_actions_aloha", "use_relative_actions")
"""Settings that must be off: conversions of ALOHA's actions, and actions relative to the state."""
EPSILON = 1e-8
"""Added to a standard deviation when normalising, and not when going back."""
_RENAMES = "rename_observations_processor"
_ENV_CAMERAS = {"observation.image": 0, "observation.images.image": 0, "observation.images.image2": 1}
"""Name of a camera in lerobot 0.4.4's environments (LIBERO, Meta-World) -> its place in `CAMERA_KEYS`."""
DATA_SET = "default"
"""Name of the one data set whose statistics a folder has."""
_BUFFER = re.compile(
    r"(normalize_inputs|normalize_targets|unnormalize_outputs)\."
    r"(so\d+(-\w+)?_)?buffer_(?P<part>observation_state|action|\w+)\.(?P<name>\w+)"
)
"""Statistics among the weights, before lerobot 0.4; files trained on several robots name one of them."""
Kind = Literal["MEAN_STD", "QUANTILES", "IDENTITY"]
_NORMALIZATIONS: dict[str, Normalization | None] = {
    "MEAN_STD": "mean_std",
    "QUANTILES": "quantiles",
    "IDENTITY": None,
}
"""lerobot's `normalization_mapping` to `Preprocessing.normalization`; None = not normalised."""


def normalizations(
    config: Mapping[str, Any], usual: Normalization, where: str
) -> tuple[Normalization | None, Normalization | None]:
    """Return the normalisation of states and that of actions, None = none; `usual` without a mapping.

    As in lerobot, a part that is absent from the mapping is not normalised.
    """
    if "normalization_mapping" not in config:
        return usual, usual
    kinds = as_annotated(Mapping[str, Kind], config["normalization_mapping"], f"normalization_mapping of {where}")
    state, action = (_NORMALIZATIONS[kinds.get(part, "IDENTITY")] for part in ("STATE", "ACTION"))
    others = {kind for part, kind in kinds.items() if part not in ("STATE", "ACTION")}
    if others - {"IDENTITY"} or (state and action and state != action):
        raise BadValue(
            f"{where}: normalization_mapping must be the same for STATE and ACTION, or IDENTITY for one of them, and "
            f"IDENTITY for all else, got {dict(kinds)}"
        )
    return state, action


def check_supported(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise `BadValue` for settings and steps of processors that change actions in ways that are not read here."""
    if wrong := [name for name in UNSUPPORTED if config.get(name)]:
        raise BadValue(f"'{folder / CONFIG_FILE}' sets {', '.join(wrong)}, which is not read here and must be false")
    for name in (PREPROCESSOR, POSTPROCESSOR):
        processor_steps(folder, name)


def processor_steps(folder: Path, name: str) -> list[Mapping[str, Any]]:
    """Return the enabled steps of a folder's pre- or postprocessor; one that is not known here raises."""
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


def rename_map(folder: Path) -> dict[str, str]:
    """Name of an observation -> name by which the policy knows it, of the preprocessor; {} where none is renamed."""
    steps = [step for step in processor_steps(folder, PREPROCESSOR) if step.get("registry_name") == _RENAMES]
    where = f"rename_map in '{folder / PREPROCESSOR}.json'"
    maps = [as_annotated(Mapping[str, str], step["config"].get("rename_map", {}), where) for step in steps]
    return {old: new for renames in maps for old, new in renames.items()}


def camera_names(config: Mapping[str, Any]) -> list[str]:
    """Names of the policy's cameras in `config.json`, without absent ones that are always filled in."""
    features = config.get("input_features") or {}
    images = [name for name, feature in features.items() if feature.get("type") == "VISUAL"]
    return [name for name in images if not re.fullmatch(r"observation\.images\.empty_camera_\d+", name)]


def known_cameras(names: Sequence[str], renames: Mapping[str, str]) -> tuple[str, ...]:
    """Return the environment's camera in the place of each of the policy's, those that it has not left out.

    Each of the policy's is looked for by the name that it has before renaming: among those of lerobot's environments,
    then among the policy's own, whose first is the main camera. Of unknown names that of a wrist is the wrist's, and
    the map's first the main camera's.
    """
    former = {new: old for old, new in renames.items()}

    def place(index: int) -> int:
        name = former.get(names[index], names[index])
        if name in _ENV_CAMERAS or name in names:
            return _ENV_CAMERAS[name] if name in _ENV_CAMERAS else names.index(name)
        return 1 if "wrist" in name else 2 * [old for old in renames if "wrist" not in old].index(name)

    ranked = sorted(range(len(names)), key=place)[: len(CAMERA_KEYS)]
    return tuple(CAMERA_KEYS[ranked.index(index)] for index in range(len(names)) if index in ranked)


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
    found = next((folder / name for name in names if Path(name).name == name and (folder / name).is_file()), None)
    if names and found is None:
        raise BadValue(f"'{folder}' lacks {names[0]}, the statistics that {path.name} names")
    return found


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


def feature_dims(config: Mapping[str, Any], part: str, statistics: Statistics | None, otherwise: int) -> int:
    """Return the length of `STATE` or `ACTION`: of its statistics, else as declared in `config.json`."""
    if statistics is not None:
        return max(len(statistics.mean), len(statistics.q01))
    side = "output_features" if part == ACTION else "input_features"
    shape = config.get(side, {}).get(part, {}).get("shape")
    return int(shape[0]) if shape else otherwise


def folder_conventions(
    config: Mapping[str, Any],
    own: VLMFlowConfig,
    request: Request,
    cameras: tuple[str, ...] | None,
    known: tuple[str, ...],
    *,
    reads_state: bool = True,
) -> Conventions:
    """Return the environment's chunk, dims and cameras, those that the folder knows, else the folder's own.

    Raises `BadValue` for an environment with other numbers of state and action than the statistics.
    """
    shape, preprocessing, wanted = own.network, own.preprocessing, request.wanted
    if wanted is not None:
        kind = preprocessing.normalization
        check_dims(preprocessing.statistics("state"), kind, "state", wanted.state_dim, read=reads_state)
        check_dims(preprocessing.statistics("action"), kind, "action", wanted.action_dim)
        chosen = tuple(name for name in known if name in wanted.cameras) if cameras is None else cameras
        spec = request.action_spec or wanted.action_spec
        return replace(wanted, cameras=chosen, image_size=shape.image_size, action_spec=spec)
    return Conventions(
        cameras=known if cameras is None else cameras,
        image_size=shape.image_size,
        state_dim=feature_dims(config, STATE, preprocessing.state, shape.state_width),
        chunk=int(config.get("n_action_steps", shape.horizon)),
        action_dim=feature_dims(config, ACTION, preprocessing.action, shape.action_width),
        action_spec=request.action_spec,
    )


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
