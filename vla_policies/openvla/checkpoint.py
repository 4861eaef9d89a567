"""OpenVLA's folder layout: settings and conventions of a folder, reading its weights, writing it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vla_gym.errors import BadValue
from vla_gym.specs import ActionSpec
from vla_policies.actions.sampling import Sampling
from vla_policies.checkpoint_io.folder import CONFIG_FILE, has_weights, write_json, write_text
from vla_policies.checkpoint_io.json_records import from_json, to_json
from vla_policies.checkpoint_io.weights import (
    check_tensors,
    fill,
    read_safetensors,
    read_shapes,
    read_tensors,
    write_safetensors,
    write_tensors,
)
from vla_policies.conventions import Conventions
from vla_policies.model_folder import ModelFolder, Request
from vla_policies.modules.lora import is_attached, merged_state
from vla_policies.modules.quantization import Scheme, packed, plain_state
from vla_policies.modules.value_head import ValueHead
from vla_policies.openvla.config import (
    OWN_KEY,
    PREPROCESSOR_FILE,
    OpenVLAConfig,
    Settings,
    read_official_files,
    stored_dtype,
)
from vla_policies.openvla.network import PrismaticNetwork
from vla_policies.processing.norm_stats import STATISTICS_FILE, choose_key, normaliser, read_statistics

VALUE_HEAD_FILE = "value_head.safetensors"
_VALUE_PREFIX = "value_head."
_LAST_OF_CRITIC = _VALUE_PREFIX + "mlp.4.weight"
_ROTARY = "rotary_emb.inv_freq"
"""Ending of tensors in old checkpoints that follow from the config."""
LIBERO_SPEC = ActionSpec(rotation="axis_angle", gripper="plus_one_closes", frame="delta", image="mirrored")
"""LIBERO's action convention, a checkpoint's default without an environment."""
DATA_SPECS = {
    "libero": LIBERO_SPEC,
    "bridge": ActionSpec(rotation="euler_xyz", gripper="plus_one_opens", frame="delta_target", units="physical"),
}
"""Action convention of data sets by the beginning of their name (BridgeData V2: metres and
roll, pitch, yaw, run by a controller that moves its last target)."""


def resolve(
    model: ModelFolder,
    request: Request,
    base: Settings,
    makers_settings: Callable[[ModelFolder, str | None], Mapping[str, Any]],
) -> tuple[OpenVLAConfig, Conventions]:
    """Settings and conventions of a folder: the user's options over the folder's own settings; without those, over
    `makers_settings` of the data set that is used, over `base`."""
    folder, config = model.folder, model.config
    official, preprocessor, files = read_official_files(folder, config)
    where = f"'{folder}'"
    saved = config.get(OWN_KEY, {})
    statistics, trained_on = read_statistics(config, model.places)
    wanted = request.unnorm_key or saved.get("unnorm_key")
    among = statistics if wanted else {key: statistics[key] for key in trained_on}
    chosen = choose_key(among, wanted, where, request.suite)
    if OWN_KEY in config:
        base = from_json(Settings, saved["settings"], f"{OWN_KEY}.settings of '{folder / CONFIG_FILE}'")
    else:
        found_settings = _data_set_settings(chosen, statistics) | _critic_settings(folder)
        base = replace(base, **{**found_settings, **makers_settings(model, chosen)})
    settings = from_json(Settings, {**to_json(base), **request.options}, "backbone_kwargs")
    if settings.center_crop or settings.camera_resize != "bicubic":
        _check_square(official, where)
    official["norm_stats"] = statistics
    found = OpenVLAConfig(
        official=official, preprocessor=preprocessor, files=files, unnorm_key=chosen, settings=settings
    )
    dims = _dims(found, saved, where)
    _check_action_dims(settings.action_dims, dims["action"], where)
    conventions = Conventions(
        cameras=settings.cameras,
        image_size=found.image_size,
        state_dim=dims.get("proprio", 0),
        chunk=settings.chunk,
        action_dim=dims["action"] if settings.action_dims is None else len(settings.action_dims),
        action_spec=None,
    )
    return found, conventions


def emitted_spec(settings: Settings, unnorm_key: str | None, wanted: ActionSpec | None) -> ActionSpec | None:
    """The policy's action convention: the gripper is the environment's, the rest the data's."""
    if settings.gripper == "as_is":
        return wanted
    data = next((spec for name, spec in DATA_SPECS.items() if (unnorm_key or "").startswith(name)), wanted)
    if data is None or wanted is None:
        return data or LIBERO_SPEC
    return data if wanted.gripper == "none" else replace(data, gripper=wanted.gripper)


def saved_spec(config: Mapping[str, Any]) -> ActionSpec | None:
    """The action spec that a folder of this project was trained for."""
    spec = config.get(OWN_KEY, {}).get("action_spec")
    return None if spec is None else from_json(ActionSpec, spec, f"{OWN_KEY}.action_spec")


def saved_sampling(config: Mapping[str, Any]) -> Sampling:
    """Token sampling of a folder of this project; the default for others."""
    return from_json(Sampling, config.get(OWN_KEY, {}).get("sampling", {}), f"{OWN_KEY}.sampling")


def read_weights(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The network's tensors and the critic's (empty where the folder has none)."""
    return _parts(folder, read_tensors(folder))


def check_weights(folder: Path, network: PrismaticNetwork) -> None:
    """Raise where the network's tensors are not the folder's, of which only headers are read."""
    check_tensors(folder, _parts(folder, read_shapes(folder))[0], network.state_dict())


def _parts(folder: Path, found: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    tensors = {name: x for name, x in found.items() if not name.endswith(_ROTARY)}
    values = {name: tensors.pop(name) for name in list(tensors) if name.startswith(_VALUE_PREFIX)}
    if (folder / VALUE_HEAD_FILE).is_file():
        values = read_safetensors(folder / VALUE_HEAD_FILE)
    return tensors, values


def load_weights(
    folder: Path, network: PrismaticNetwork, value_head: ValueHead, dtype: torch.dtype, scheme: Scheme | None
) -> None:
    """Fill both; a folder without a critic gets a fresh one."""
    tensors, values = read_weights(folder)
    if scheme is None:
        fill(network, tensors, folder, lambda _: dtype)
    else:
        check_tensors(folder, tensors, network.state_dict())
        network.quantize(scheme, dtype)
        # One tensor after the other: of the whole weights only what the files map is ever there.
        network.load_state_dict(dict(packed(network, tensors, dtype)), strict=True, assign=True)
    if values:
        load_value_head(value_head, values, folder)
    else:
        value_head.initialise()


def load_value_head(value_head: ValueHead, tensors: Mapping[str, Tensor], where: Path) -> None:
    """Fill the critic from tensors under `value_head.`."""
    plain = {name.removeprefix(_VALUE_PREFIX): tensor for name, tensor in tensors.items()}
    check_tensors(where, plain, value_head.state_dict())
    value_head.load_state_dict({name: tensor.float() for name, tensor in plain.items()})


def value_head_state(value_head: ValueHead) -> dict[str, Tensor]:
    """The critic's tensors as `load_value_head` takes them."""
    return {_VALUE_PREFIX + name: tensor for name, tensor in value_head.state_dict().items()}


def weight_dtype(config: OpenVLAConfig, *, on_gpu: bool) -> torch.dtype:
    """Type of the network's weights; the heads are float32 in any case."""
    name: str = config.settings.dtype
    if name == "auto":
        name = stored_dtype(config.official) if on_gpu else "float32"
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def save_folder(
    folder: Path,
    config: OpenVLAConfig,
    network: PrismaticNetwork,
    value_head: ValueHead,
    own_settings: Mapping[str, Any],
) -> None:
    """Write the official layout, with `own_settings` under one key of `config.json` and the critic in one more file."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder, merged_state(network) if is_attached(network) else plain_state(network))
    write_safetensors(folder / VALUE_HEAD_FILE, value_head_state(value_head))
    for name, content in config.files.items():
        write_text(folder / name, content)
    write_json(folder / PREPROCESSOR_FILE, config.preprocessor, sort_keys=True)
    write_json(folder / STATISTICS_FILE, config.statistics, sort_keys=True)
    official = {**config.official, OWN_KEY: dict(own_settings)}
    write_json(folder / CONFIG_FILE, official, sort_keys=True)


def own_settings(family: str, config: OpenVLAConfig, conventions: Conventions, sampling: Any) -> dict[str, Any]:
    """Settings beyond the official layout with which a folder is opened the same way again."""
    spec = conventions.action_spec
    return {
        "family": family,
        "unnorm_key": config.unnorm_key,
        "action_dim": conventions.action_dim,
        "settings": to_json(replace(config.settings, lora=None)),
        "sampling": sampling,
        "action_spec": None if spec is None else to_json(spec),
    }


def _dims(config: OpenVLAConfig, saved: Mapping[str, Any], where: str) -> dict[str, int]:
    """Lengths of action and state, from the statistics; fresh weights have none."""
    if config.unnorm_key is None:
        if "action_dim" not in saved:
            raise BadValue(
                f"{where} has no action statistics: neither norm_stats in {CONFIG_FILE} nor {STATISTICS_FILE}"
            )
        return {"action": int(saved["action_dim"])}
    parts = ("action", "proprio") if config.settings.use_state else ("action",)
    statistics, key, bounds = config.statistics, config.unnorm_key, config.settings.bounds
    return {part: len(normaliser(statistics, key, part, where, bounds=bounds, epsilon=0.0).low_A) for part in parts}


def _check_action_dims(chosen: tuple[int, ...] | None, numbers: int, where: str) -> None:
    if chosen is not None and (not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(numbers))):
        raise BadValue(
            f"action_dims of {where} must be different indices in 0 .. {numbers - 1}, one for each number that the "
            f"environment takes, got {list(chosen)}"
        )


def _data_set_settings(key: str | None, statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a data set in the evaluation scripts of openvla and openvla-oft."""
    if key is None:
        return {}
    mask = statistics[key].get("action", {}).get("mask")
    settings: dict[str, Any] = {}
    if mask and len(mask) == 7 and not mask[-1]:
        settings["gripper"] = "zero_to_one_opens"
    if key.startswith("libero"):
        settings |= {"camera_resize": "jpeg_lanczos3", "center_crop": True}
    return settings


def _critic_settings(folder: Path) -> dict[str, Any]:
    """The number of values that a critic among the weights gives; only headers are read."""
    last = read_shapes(folder).get(_LAST_OF_CRITIC) if has_weights(folder) else None
    return {} if last is None else {"value_outputs": last.shape[0]}


def _check_square(official: Mapping[str, Any], where: str) -> None:
    if len(set(official["image_sizes"])) > 1:
        raise BadValue(f"{where} has towers of different image sizes, for which camera settings are not defined")
