"""OpenVLA's folder layout: settings and conventions of a folder, reading its weights, writing it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vla_gym.errors import BadValue
from vla_gym.specs import ActionSpec
from vla_policies.actions.sampling import Sampling
from vla_policies.checkpoint_io.folder import CONFIG_FILE, OWN_KEY, has_weights, write_json, write_text
from vla_policies.checkpoint_io.json_records import from_json, to_json
from vla_policies.checkpoint_io.weights import (
    read_safetensors,
    read_shapes,
    read_tensors,
    write_safetensors,
    write_tensors,
)
from vla_policies.conventions import Conventions
from vla_policies.lora_backbone import is_attached, merged_state
from vla_policies.model_folder import ModelFolder, Request
from vla_policies.modules.heads import ValueHead
from vla_policies.modules.quantization import plain_state
from vla_policies.openvla.config import PREPROCESSOR_FILE, OpenVLAConfig, Settings, read_official_files
from vla_policies.openvla.network import PrismaticNetwork
from vla_policies.processing.statistics import STATISTICS_FILE, choose_key, normaliser, read_statistics

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


@dataclass(frozen=True, kw_only=True)
class OwnSettings:
    """Settings beyond the official layout with which a folder is opened the same way again."""

    family: str
    unnorm_key: str | None
    action_dim: int
    settings: Settings
    sampling: Sampling
    action_spec: ActionSpec | None
    """Action convention that the folder was trained for."""


def resolve(
    model: ModelFolder,
    request: Request,
    base: Settings,
    makers_settings: Callable[[ModelFolder, str | None], Mapping[str, Any]],
) -> tuple[OpenVLAConfig, Conventions, Sampling]:
    """Settings, conventions and token sampling of a folder: the user's options over the folder's own settings; without
    those, over `makers_settings` of the data set that is used, over `base`."""
    folder, where = model.folder, f"'{model.folder}'"
    official, preprocessor, files = read_official_files(folder, model.config)
    own = None
    if OWN_KEY in model.config:
        own = from_json(OwnSettings, model.config[OWN_KEY], f"{OWN_KEY} of '{folder / CONFIG_FILE}'")
    official["norm_stats"], trained_on = read_statistics(model.config, model.places)
    statistics = official["norm_stats"]
    wanted = request.unnorm_key or (own.unnorm_key if own is not None else None)
    among = statistics if wanted else {key: statistics[key] for key in trained_on}
    source = next((place for place in model.places if (place / STATISTICS_FILE).is_file()), folder)
    chosen = choose_key(among, wanted, f"'{source}'", request.suite)
    if own is None:
        found_settings = _data_set_settings(chosen, statistics) | _critic_settings(folder)
        base = replace(base, **{**found_settings, **makers_settings(model, chosen)})
    else:
        base = own.settings
    settings = from_json(Settings, {**to_json(base), **request.options}, "backbone_kwargs")
    config = OpenVLAConfig(
        official=official, preprocessor=preprocessor, files=files, unnorm_key=chosen, settings=settings
    )
    numbers, state_dim = _dims(config, own, where)
    dims = settings.action_dims
    if dims is not None and (not dims or len(set(dims)) < len(dims) or not set(dims) <= set(range(numbers))):
        raise BadValue(
            f"action_dims of {where} must be different indices in 0 .. {numbers - 1}, one for each number that the "
            f"environment takes, got {list(dims)}"
        )
    spec = request.action_spec or (own.action_spec if own is not None else None)
    conventions = Conventions(
        cameras=settings.cameras,
        image_size=config.image_size,
        state_dim=state_dim,
        chunk=settings.chunk,
        action_dim=numbers if dims is None else len(dims),
        action_spec=_emitted_spec(settings, chosen, spec),
    )
    return config, conventions, Sampling() if own is None else own.sampling


def _emitted_spec(settings: Settings, unnorm_key: str | None, wanted: ActionSpec | None) -> ActionSpec | None:
    """The policy's action convention: the gripper is the environment's, the rest the data's."""
    if settings.gripper == "as_is":
        return wanted
    data = next((spec for name, spec in DATA_SPECS.items() if (unnorm_key or "").startswith(name)), wanted)
    if data is None or wanted is None:
        return data or LIBERO_SPEC
    return data if wanted.gripper == "none" else replace(data, gripper=wanted.gripper)


def read_weights(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The network's tensors and the critic's (empty where the folder has none)."""
    tensors = {name: x for name, x in read_tensors(folder).items() if not name.endswith(_ROTARY)}
    critic = {
        name.removeprefix(_VALUE_PREFIX): tensors.pop(name) for name in list(tensors) if name.startswith(_VALUE_PREFIX)
    }
    return tensors, read_critic(folder) if (folder / VALUE_HEAD_FILE).is_file() else critic


def read_critic(folder: Path) -> dict[str, Tensor]:
    """The critic's tensors, from a file of their own."""
    tensors = read_safetensors(folder / VALUE_HEAD_FILE)
    return {name.removeprefix(_VALUE_PREFIX): x for name, x in tensors.items()}


def write_critic(folder: Path, value_head: ValueHead) -> None:
    """Write the file of `read_critic`."""
    tensors = {_VALUE_PREFIX + name: x for name, x in value_head.state_dict().items()}
    write_safetensors(folder / VALUE_HEAD_FILE, tensors)


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
    write_critic(folder, value_head)
    for name, content in config.files.items():
        write_text(folder / name, content)
    write_json(folder / PREPROCESSOR_FILE, config.preprocessor, sort_keys=True)
    write_json(folder / STATISTICS_FILE, config.statistics, sort_keys=True)
    write_json(folder / CONFIG_FILE, {**config.official, OWN_KEY: dict(own_settings)}, sort_keys=True)


def own_settings(family: str, config: OpenVLAConfig, conventions: Conventions, sampling: Any) -> dict[str, Any]:
    """The values of `OwnSettings`; `sampling` is given as JSON."""
    spec = conventions.action_spec
    return {
        "family": family,
        "unnorm_key": config.unnorm_key,
        "action_dim": conventions.action_dim,
        "settings": to_json(replace(config.settings, lora=None)),
        "sampling": sampling,
        "action_spec": None if spec is None else to_json(spec),
    }


def _dims(config: OpenVLAConfig, own: OwnSettings | None, where: str) -> tuple[int, int]:
    if config.unnorm_key is None:
        if own is None:
            raise BadValue(
                f"{where} has no action statistics: neither norm_stats in {CONFIG_FILE} nor {STATISTICS_FILE}"
            )
        return own.action_dim, 0

    key, bounds = config.unnorm_key, config.settings.bounds
    action, state = (
        len(normaliser(config.statistics, key, part, where, bounds=bounds, epsilon=0.0).low_A) if read else 0
        for part, read in (("action", True), ("proprio", config.settings.use_state))
    )
    return action, state


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
    last = read_shapes(folder).get(_LAST_OF_CRITIC) if has_weights(folder) else None
    return {} if last is None else {"value_outputs": last.shape[0]}
