"""lerobot's folders of SmolVLA: their settings, the network that they describe with the vision-language model's,
statistics and weights; and writing them.

Two layouts: since lerobot 0.4 statistics are in files of the pre- and postprocessor, before among the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import LlamaConfig, SmolVLMConfig

from vla_gym.errors import BadValue
from vla_gym.reading import read_json_object, user_path
from vla_policies.actions.flow import FlowSettings
from vla_policies.checkpoint_io.folder import CONFIG_FILE, write_json, write_text
from vla_policies.checkpoint_io.folder import read_config as read_settings
from vla_policies.checkpoint_io.hub import HubId, fetch, parse_hub_id
from vla_policies.checkpoint_io.json_records import from_json
from vla_policies.checkpoint_io.weights import read_tensors, write_tensors
from vla_policies.conventions import Conventions
from vla_policies.processing.statistics import Statistics, choose_key
from vla_policies.smolvla.config import (
    VLM_NAME,
    Learning,
    LlamaShape,
    NetworkShape,
    Preprocessing,
    SmolVLAConfig,
    VisionShape,
)
from vla_policies.smolvla.processor import TOKENIZER_FILES, bracket_ids
from vla_policies.vlm_flow.config import WORDS
from vla_policies.vlm_flow.lerobot import (
    ACTION,
    EPSILON,
    STATE,
    camera_names,
    check_supported,
    is_statistic,
    lerobot_statistics,
    normalizations,
    statistics_in_weights,
    write_processors,
)

_UNUSED = "model.vlm_with_expert.vlm.lm_head.weight"
"""Published, sometimes left out, and read by nothing."""
VLM_FOLDER = "vlm"
"""Name by which a folder of this project names a vision-language model that has no other."""
VLM_CONFIG = "vlm_config.json"
"""The vision-language model's `config.json` in a folder of this project, its tokenizer's files beside it."""
VLM_FILES = ("*.json", "*.txt")
"""Files of a vision-language model without its weights."""
LEARNING = ("train_expert_only", "freeze_vision_encoder", "train_state_proj")
"""Settings that are those of `Learning`."""
SETTINGS: Mapping[str, Any] = {
    "type": "smolvla",
    "n_obs_steps": 1,
    "input_features": {},
    "output_features": {},
    "device": "cpu",
    "use_amp": False,
    "use_peft": False,
    "push_to_hub": False,
    "repo_id": None,
    "private": None,
    "tags": None,
    "license": None,
    "pretrained_path": None,
    "chunk_size": 50,
    "n_action_steps": 50,
    "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"},
    "max_state_dim": 32,
    "max_action_dim": 32,
    "resize_imgs_with_padding": [512, 512],
    "empty_cameras": 0,
    "adapt_to_pi_aloha": False,
    "use_delta_joint_actions_aloha": False,
    "tokenizer_max_length": 48,
    "num_steps": 10,
    "use_cache": True,
    "freeze_vision_encoder": True,
    "train_expert_only": True,
    "train_state_proj": True,
    "optimizer_lr": 1e-4,
    "optimizer_betas": [0.9, 0.95],
    "optimizer_eps": 1e-8,
    "optimizer_weight_decay": 1e-10,
    "optimizer_grad_clip_norm": 10,
    "scheduler_warmup_steps": 1000,
    "scheduler_decay_steps": 30000,
    "scheduler_decay_lr": 2.5e-6,
    "vlm_model_name": VLM_NAME,
    "load_vlm_weights": False,
    "add_image_special_tokens": False,
    "attention_mode": "cross_attn",
    "prefix_length": -1,
    "pad_language_to": "longest",
    "num_expert_layers": -1,
    "num_vlm_layers": 16,
    "self_attn_every_n_layers": 2,
    "expert_width_multiplier": 0.75,
    "min_period": 0.004,
    "max_period": 4.0,
    "rtc_config": None,
    "compile_model": False,
    "compile_mode": "max-autotune",
}
"""Keys of `config.json` and their defaults, as of lerobot 0.4.4, which knows no others; absent ones have these."""


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
    check_supported(source, config)
    state_kind, action_kind = normalizations(values, "mean_std", where)
    statistics = statistics_of(folder, beside)
    key = choose_key(statistics, unnorm_key, f"'{folder}'")
    chosen = statistics[key] if key is not None else {}
    vlm = find_vlm(folder, str(values["vlm_model_name"]))
    return SmolVLAConfig(
        network=network_shape(values, vlm, where),
        preprocessing=Preprocessing(
            normalization=state_kind or action_kind or "mean_std",
            state=chosen.get("state") if state_kind else None,
            action=chosen.get("action") if action_kind else None,
            data_set=key,
            max_tokens=int(values["tokenizer_max_length"]),
            tokenizer=str(vlm[1]),
        ),
        learning=from_json(Learning, {name: values[name] for name in LEARNING}, where),
        flow=FlowSettings(num_steps=int(values["num_steps"])),
        published=values,
    )


def with_absent_cameras(own: SmolVLAConfig, num_cameras: int) -> SmolVLAConfig:
    """The config with the number of absent cameras whose brackets are read: those declared, `empty_cameras` at most."""
    empty = int(own.published["empty_cameras"])
    absent = max(0, len(camera_names(own.published)) + empty - num_cameras)
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
    return tensors if _UNUSED in tensors else {**tensors, _UNUSED: torch.zeros(wanted[_UNUSED].shape)}


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
    statistics = {"state": preprocessing.statistics("state"), "action": preprocessing.statistics("action")}
    write_processors(folder, _steps(values, config.rename_map), statistics)
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
    shape = config.network
    values = {**SETTINGS, **(config.published or settings_of(shape))}
    images = {name: feature for name, feature in values["input_features"].items() if feature["type"] == "VISUAL"}
    if not images:
        side = [3, shape.image_size, shape.image_size]
        names = [f"observation.images.camera{number + 1}" for number in range(len(conventions.cameras))]
        images = {name: {"type": "VISUAL", "shape": side} for name in names}
    return {
        **values,
        "input_features": {STATE: {"type": "STATE", "shape": [conventions.state_dim]}, **images},
        "output_features": {ACTION: {"type": "ACTION", "shape": [conventions.action_dim]}},
        "chunk_size": shape.horizon,
        "n_action_steps": conventions.chunk,
        "num_steps": config.flow.num_steps,
        **{name: getattr(config.learning, name) for name in LEARNING},
        "use_peft": False,
    }


def _steps(values: Mapping[str, Any], renames: Mapping[str, str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
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
        {"registry_name": "rename_observations_processor", "config": {"rename_map": dict(renames)}},
        {"registry_name": "to_batch_processor", "config": {}},
        {"registry_name": "smolvla_new_line_processor", "config": {}},
        {"registry_name": "tokenizer_processor", "config": tokenizer},
        device,
        normaliser("normalizer_processor", {**values["input_features"], **values["output_features"]}),
    ]
    return before, [normaliser("unnormalizer_processor", values["output_features"]), dict(device)]


# The network that settings describe -------------------------------------------------------------------


def find_vlm(folder: Path, name: str) -> tuple[Path, Path]:
    """Where the vision-language model `name` of a checkpoint folder has its `config.json`, and the folder of its
    tokenizer: in the checkpoint, beside it, here, or on the Hub."""
    if (folder / VLM_CONFIG).is_file():
        return folder / VLM_CONFIG, folder.resolve()
    for place in (folder / name, folder.parent / name, user_path(name)):
        if place.resolve() != folder.resolve() and (place / CONFIG_FILE).is_file():
            return place / CONFIG_FILE, place.resolve()
    hub = parse_hub_id(name)
    if hub is None:
        raise BadValue(
            f"the vision-language model '{name}' of '{folder}' is no folder in it or beside it and no Hub id; put its "
            f"{CONFIG_FILE} and tokenizer into '{folder / VLM_FOLDER}' and set vlm_model_name to {VLM_FOLDER}"
        )
    fetched = fetch(HubId(hub.repo, hub.revision), allow=VLM_FILES)
    return fetched / CONFIG_FILE, fetched


def tokenizer_folder(name: str) -> Path:
    """The folder of `Preprocessing.tokenizer`: itself, or a Hub id's."""
    path = user_path(name)
    return path if path.is_dir() else find_vlm(path, name)[1]


def network_shape(values: Mapping[str, Any], vlm: tuple[Path, Path], where: str) -> NetworkShape:
    """Sizes of the network that lerobot builds from its settings and the vision-language model's, which is at `vlm`."""
    whole, num_heads = _vlm_settings(vlm[0])
    text, vision = whole.text_config, whole.vision_config
    depth = values["num_vlm_layers"] if values["num_vlm_layers"] > 0 else text.num_hidden_layers
    expert_depth = values["num_expert_layers"] if values["num_expert_layers"] > 0 else depth
    width = int(text.hidden_size * values["expert_width_multiplier"])
    heads = {
        "num_heads": num_heads,
        "num_kv_heads": text.num_key_value_heads,
        "head_dim": text.head_dim,
        "norm_epsilon": text.rms_norm_eps,
    }
    bracketed = bool(values["add_image_special_tokens"])
    return NetworkShape(
        vision=VisionShape(**{item.name: getattr(vision, item.name) for item in fields(VisionShape)}),
        pixel_shuffle=whole.scale_factor,
        picture_size=_picture_size(values["resize_imgs_with_padding"], where),
        text=LlamaShape(width=text.hidden_size, mlp_dim=text.intermediate_size, depth=depth, **heads),
        vocab_size=text.vocab_size,
        image_brackets=bracket_ids(vlm[1]) if bracketed else None,
        expert=LlamaShape(width=width, mlp_dim=expert_mlp(width), depth=expert_depth, **heads),
        joint_layers=joint_layers(values, depth, expert_depth, where),
        horizon=int(values["chunk_size"]),
        action_width=int(values["max_action_dim"]),
        state_width=int(values["max_state_dim"]),
        min_period=float(values["min_period"]),
        max_period=float(values["max_period"]),
    )


def _vlm_settings(path: Path) -> tuple[SmolVLMConfig, int]:
    """Settings of the vision-language model, and the text model's heads, which they leave out: transformers wants the
    width to be a multiple of them, which the network, whose heads have a size of their own, does not need."""
    settings = read_json_object(path)
    try:
        text = {"model_type": "llama", **(settings.get("text_config") or {})}
        num_heads = int(text.get("num_attention_heads", LlamaConfig.num_attention_heads))
        own = {
            "num_attention_heads": 1,
            "num_key_value_heads": text.get("num_key_value_heads") or num_heads,
            "head_dim": text.get("head_dim") or int(text.get("hidden_size", LlamaConfig.hidden_size)) // num_heads,
        }
        return SmolVLMConfig(**{**settings, "text_config": {**text, **own}}), num_heads
    except (StrictDataclassError, ArithmeticError, TypeError, ValueError) as error:
        raise BadValue(f"'{path}' is no config of a SmolVLM: {' '.join(str(error).split())}") from error


def expert_mlp(width: int) -> int:
    """Hidden features of the expert's MLPs: four times two thirds of its width, up to the next multiple of 256."""
    return 256 * -(-4 * int(2 * width / 3) // 256)


def joint_layers(values: Mapping[str, Any], depth: int, expert_depth: int, where: str) -> tuple[int, ...]:
    """Expert layers with self-attention: every n-th text layer's, all without cross-attention, none where n <= 0.

    With fewer expert layers than text layers lerobot decides a layer's sizes by its own number and what it does by its
    text layer's; settings where the two differ, or a joint text layer has no expert, run nowhere and raise.
    """
    every = int(values["self_attn_every_n_layers"])

    def joint(layer: int) -> bool:
        return "cross" not in values["attention_mode"] or (every > 0 and layer % every == 0)

    step = depth // expert_depth
    if step > 1 and (
        any(joint(layer) != joint(layer * step) for layer in range(expert_depth))
        or any(joint(layer) for layer in range(depth) if layer % step)
    ):
        raise BadValue(
            f"{where}: with {expert_depth} expert layers on {depth}, self_attn_every_n_layers must be <= 0 or >= "
            f"{depth}, got {every}"
        )
    return tuple(layer for layer in range(expert_depth) if joint(layer))


def _picture_size(sides: Any, where: str) -> int | None:
    if sides is None:
        return None
    if not isinstance(sides, Sequence) or len(sides) != 2 or sides[0] != sides[1]:
        raise BadValue(f"{where}: resize_imgs_with_padding must be two equal sides or null, got {sides}")
    return int(sides[0])


def settings_of(shape: NetworkShape) -> dict[str, Any]:
    """The settings of `config.json` that give a network of this shape, for fresh weights."""
    joint, depth = shape.joint_layers, shape.expert.depth
    every = 0 if not joint else depth if len(joint) == 1 else joint[1]
    sides = None if shape.picture_size is None else [shape.picture_size] * 2
    return {
        "resize_imgs_with_padding": sides,
        "max_state_dim": shape.state_width,
        "max_action_dim": shape.action_width,
        "num_vlm_layers": shape.text.depth,
        "num_expert_layers": depth,
        "self_attn_every_n_layers": every,
        "expert_width_multiplier": shape.expert.width / shape.text.width,
        "min_period": shape.min_period,
        "max_period": shape.max_period,
    }


def vlm_json(shape: NetworkShape) -> dict[str, Any]:
    """The vision-language model's `config.json` that gives a network of this shape, for fresh weights."""
    text = shape.text
    return {
        "model_type": "smolvlm",
        "architectures": ["SmolVLMForConditionalGeneration"],
        "scale_factor": shape.pixel_shuffle,
        "tie_word_embeddings": False,
        "vision_config": {"model_type": "smolvlm_vision", **asdict(shape.vision)},
        "text_config": {
            "model_type": "llama",
            "hidden_size": text.width,
            "intermediate_size": text.mlp_dim,
            "num_hidden_layers": text.depth,
            "num_attention_heads": text.num_heads,
            "num_key_value_heads": text.num_kv_heads,
            "head_dim": text.head_dim,
            "rms_norm_eps": text.norm_epsilon,
            "vocab_size": shape.vocab_size,
        },
    }
