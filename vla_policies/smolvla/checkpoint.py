"""lerobot's folders of SmolVLA: their settings, statistics and weights; and writing them.

Two layouts: since lerobot 0.4 statistics are in files of the pre- and postprocessor, before among the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vla_gym.errors import BadValue
from vla_policies.actions.flow import FlowSettings
from vla_policies.checkpoint_io.folder import CONFIG_FILE, write_json, write_text
from vla_policies.checkpoint_io.folder import read_config as read_settings
from vla_policies.checkpoint_io.weights import read_shapes, read_tensors, write_tensors
from vla_policies.conventions import CAMERA_KEYS, Conventions
from vla_policies.model_folder import Request
from vla_policies.processing.lerobot_files import (
    ACTION,
    EPSILON,
    STATE,
    feature_dims,
    is_statistic,
    lerobot_statistics,
    normalizations,
    relative_dims,
    statistics_in_weights,
    write_processors,
)
from vla_policies.processing.norm_stats import choose_key
from vla_policies.processing.statistics import Statistics
from vla_policies.smolvla.config import Learning, Preprocessing, SmolVLAConfig
from vla_policies.smolvla.lerobot_config import (
    SETTINGS,
    VLM_CONFIG,
    VLM_FOLDER,
    find_vlm,
    network_shape,
    pictures_of,
    settings_of,
    tokenizer_folder,
    vlm_json,
)
from vla_policies.smolvla.tokenizer import TOKENIZER_FILES
from vla_policies.vlm_flow_config import WORDS

_UNUSED = "model.vlm_with_expert.vlm.lm_head.weight"
"""Published, sometimes left out, and read by nothing."""


def settings_folder(folder: Path, beside: Sequence[Path] = ()) -> Path:
    """Where a model's settings are: in the folder of an adapter that lerobot trained, else in the model's own."""
    settings = (place for place in beside if (place / CONFIG_FILE).is_file())
    return next((place for place in settings if read_settings(place).get("type") == SETTINGS["type"]), folder)


def read_config(
    folder: Path, config: Mapping[str, Any], unnorm_key: str | None, beside: Sequence[Path] = ()
) -> SmolVLAConfig:
    """The config of a published folder, statistics included; `config` is that of `settings_folder`."""
    source = settings_folder(folder, beside)
    where = f"'{source / CONFIG_FILE}'"
    values = {**SETTINGS, **{key: value for key, value in config.items() if key in SETTINGS}}
    if values["adapt_to_pi_aloha"] or values["use_delta_joint_actions_aloha"]:
        raise BadValue(f"{where}: the ALOHA conversions (adapt_to_pi_aloha) are not supported; they must be false")
    if relative_dims(source, config, int(values["max_action_dim"])):
        raise BadValue(f"{where}: relative actions (use_relative_actions) are not read here; they must be false")
    kinds = normalizations(values, "mean_std", where)
    statistics = statistics_of(folder, beside)
    key = choose_key(statistics, unnorm_key, f"'{folder}'")
    chosen = statistics[key] if key is not None else {}
    vlm = find_vlm(folder, str(values["vlm_model_name"]))
    return SmolVLAConfig(
        network=network_shape(values, vlm, where),
        preprocessing=Preprocessing(
            normalization=kinds["state"] or kinds["action"] or "mean_std",
            state=chosen.get("state") if kinds["state"] else None,
            action=chosen.get("action") if kinds["action"] else None,
            max_tokens=int(values["tokenizer_max_length"]),
            tokenizer=str(vlm[1]),
        ),
        learning=Learning(
            train_expert_only=bool(values["train_expert_only"]),
            freeze_vision_encoder=bool(values["freeze_vision_encoder"]),
            train_state_proj=bool(values["train_state_proj"]),
        ),
        flow=FlowSettings(num_steps=int(values["num_steps"])),
        published=values,
    )


def with_tokenizer(config: SmolVLAConfig, folder: Path) -> SmolVLAConfig:
    """The config of a folder of this project, its tokenizer found."""
    found = str(find_vlm(folder, str(config.published.get("vlm_model_name", VLM_FOLDER)))[1])
    return replace(config, preprocessing=replace(config.preprocessing, tokenizer=found))


def portable(config: SmolVLAConfig) -> SmolVLAConfig:
    """The config as it is written, where the tokenizer is the folder's own."""
    name = config.preprocessing.tokenizer
    return replace(
        config, preprocessing=replace(config.preprocessing, tokenizer=WORDS if name == WORDS else VLM_FOLDER)
    )


# Cameras, chunk, dims -----------------------------------------------------------------------------------


def folder_conventions(own: SmolVLAConfig, request: Request, cameras: tuple[str, ...] | None) -> Conventions:
    """The environment's chunk, dims and cameras, as many as the checkpoint knows, else those it was trained with."""
    spec, size, values = request.action_spec, own.network.image_size, own.published
    known = max(1, len(pictures_of(values)))
    if request.wanted is not None:
        wanted = request.wanted
        chosen = wanted.cameras[:known] if cameras is None else cameras
        return replace(wanted, cameras=chosen, image_size=size, action_spec=spec or wanted.action_spec)
    shape, preprocessing = own.network, own.preprocessing
    return Conventions(
        cameras=CAMERA_KEYS[:known] if cameras is None else cameras,
        image_size=size,
        state_dim=feature_dims(values, "input_features", STATE, preprocessing.state, shape.state_width),
        chunk=int(values["n_action_steps"]),
        action_dim=feature_dims(values, "output_features", ACTION, preprocessing.action, shape.action_width),
        action_spec=spec,
    )


def with_absent_cameras(own: SmolVLAConfig, num_cameras: int) -> SmolVLAConfig:
    """The config with the number of absent cameras whose brackets are read: those declared, `empty_cameras` at most."""
    empty = int(own.published["empty_cameras"])
    absent = max(0, len(pictures_of(own.published)) + empty - num_cameras)
    return replace(own, network=replace(own.network, empty_blocks=min(absent, empty)))


# Weights and statistics ---------------------------------------------------------------------------------


def published_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors without statistics, under the names of today."""
    return {
        name.replace("model._orig_mod.", "model.", 1): tensor
        for name, tensor in tensors.items()
        if not is_statistic(name)
    }


def read_weights(folder: Path, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The network's tensors; where the folder leaves out the language head, which nothing reads, it is zeros."""
    tensors = published_names(read_tensors(folder, skip=is_statistic))
    return _with_head(tensors, lambda: torch.zeros(wanted[_UNUSED].shape))


def read_weight_shapes(folder: Path, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As `read_weights` on the meta device, from the files' headers."""
    return _with_head(published_names(read_shapes(folder)), lambda: torch.empty(wanted[_UNUSED].shape, device="meta"))


def _with_head(tensors: dict[str, Tensor], make: Callable[[], Tensor]) -> dict[str, Tensor]:
    return tensors if _UNUSED in tensors else {**tensors, _UNUSED: make()}


def statistics_of(folder: Path, beside: Sequence[Path] = ()) -> dict[str, dict[str, Statistics]]:
    """Data set -> "state" and "action" -> statistics, of the preprocessor or, in older folders, among the weights."""
    found = (lerobot_statistics(place) for place in (*beside, folder))
    return next(filter(None, found), None) or statistics_in_weights(folder)


# Writing ------------------------------------------------------------------------------------------------


def write_folder(folder: Path, config: SmolVLAConfig, conventions: Conventions, tensors: Mapping[str, Tensor]) -> None:
    """Write lerobot's layout: settings, weights, processors; beside them the vision-language model's settings and
    tokenizer, so that the folder opens by itself."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder, tensors)
    vlm_name = _write_vlm(folder, config)
    values = {**_published_values(config, conventions), "vlm_model_name": vlm_name}
    preprocessing = config.preprocessing
    used = preprocessing.use_statistics
    statistics = {
        "state": preprocessing.state if used else None,
        "action": preprocessing.action if used else None,
    }
    write_processors(folder, _steps(values), statistics)
    write_json(folder / CONFIG_FILE, values)


def _write_vlm(folder: Path, config: SmolVLAConfig) -> str:
    """Write the vision-language model's settings and tokenizer; return the name by which lerobot looks for it."""
    name = config.preprocessing.tokenizer
    write_json(folder / VLM_CONFIG, vlm_json(config.network))
    source = None if name == WORDS else tokenizer_folder(name)
    if source is not None and source != folder.resolve():
        for path in (source / file for file in TOKENIZER_FILES if (source / file).is_file()):
            write_text(folder / path.name, path.read_text(encoding="utf-8"))
    return str(config.published.get("vlm_model_name", VLM_FOLDER))


def _published_values(config: SmolVLAConfig, conventions: Conventions) -> dict[str, Any]:
    """lerobot's settings of this network for these observations and actions."""
    shape, learning = config.network, config.learning
    values = {**SETTINGS, **(config.published or settings_of(shape))}
    pictures = {name: feature for name, feature in values["input_features"].items() if feature["type"] == "VISUAL"}
    if not pictures:
        side = [3, shape.image_size, shape.image_size]
        names = [f"observation.images.camera{number + 1}" for number in range(len(conventions.cameras))]
        pictures = {name: {"type": "VISUAL", "shape": side} for name in names}
    return {
        **values,
        "input_features": {STATE: {"type": "STATE", "shape": [conventions.state_dim]}, **pictures},
        "output_features": {ACTION: {"type": "ACTION", "shape": [conventions.action_dim]}},
        "chunk_size": shape.horizon,
        "n_action_steps": conventions.chunk,
        "num_steps": config.flow.num_steps,
        "train_expert_only": learning.train_expert_only,
        "freeze_vision_encoder": learning.freeze_vision_encoder,
        "train_state_proj": learning.train_state_proj,
        "use_peft": False,
    }


def _steps(values: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Steps of lerobot's pre- and postprocessor."""
    device = {"registry_name": "device_processor", "config": {"device": values["device"], "float_dtype": None}}
    tokenizer = {
        "max_length": values["tokenizer_max_length"],
        "task_key": "task",
        "padding_side": "right",
        "padding": values["pad_language_to"],
        "truncation": True,
        "tokenizer_name": values["vlm_model_name"],
    }

    def normaliser(name: str, features: Mapping[str, Any]) -> dict[str, Any]:
        settings = {"eps": EPSILON, "features": dict(features), "norm_map": values["normalization_mapping"]}
        return {"registry_name": name, "config": settings}

    before = [
        {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}},
        {"registry_name": "to_batch_processor", "config": {}},
        {"registry_name": "smolvla_new_line_processor", "config": {}},
        {"registry_name": "tokenizer_processor", "config": tokenizer},
        device,
        normaliser("normalizer_processor", {**values["input_features"], **values["output_features"]}),
    ]
    return before, [normaliser("unnormalizer_processor", values["output_features"]), dict(device)]
