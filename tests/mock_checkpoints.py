"""Folders with the file names, keys, shapes and layouts of published checkpoints, their weights left out.

A file of weights has its real header and its real length, but is sparse: it takes no room, and nothing reads its zeros.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import torch

from vla_policies.openvla.config import SIZES, OpenVLAConfig, Settings, _official
from vla_policies.openvla.network import PrismaticNetwork
from vla_policies.pi0.config import NetworkShape
from vla_policies.pi0.model import Pi0Network

Shapes = Mapping[str, Sequence[int]]
BFLOAT16 = 2
VOCABULARY = 257152
ACTION = [0.1, -0.2, 0.3, 0.0, 0.1, -0.1, 0.9]


def write_sparse(path: Path, shapes: Shapes) -> None:
    """A safetensors file of bfloat16 zeros that occupies only its header."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + BFLOAT16 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


@cache
def openvla_shapes(size: str = "7b") -> dict[str, tuple[int, ...]]:
    """Names and shapes of the 982 tensors of OpenVLA-7B."""
    config = OpenVLAConfig(
        official=_official(*SIZES[size]), preprocessor={}, files={}, unnorm_key=None, settings=Settings()
    )
    with torch.device("meta"):
        network = PrismaticNetwork(config)
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def statistics(numbers: int = 7) -> dict[str, Any]:
    """OpenVLA's statistics of a data set whose actions have so many numbers, the last of them a gripper's."""
    values = {name: [float(i + 1)] * numbers for i, name in enumerate(("q01", "q99", "mean", "std", "min", "max"))}
    action = {**values, "q01": [-1.0] * numbers, "q99": [1.0] * numbers, "mask": [True] * (numbers - 1) + [False]}
    return {"action": action, "proprio": {name: [0.0] * 8 for name in values}}


def openvla(folder: Path, keys: Sequence[str], *, in_config: Sequence[str] = (), size: str = "7b") -> Path:
    """OpenVLA's layout: three shards and their index, statistics of the fine-tune in a file of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    official = {**_official(*SIZES[size]), "norm_stats": {key: statistics() for key in in_config}}
    shapes = openvla_shapes(size)
    names = list(shapes)
    shards = {f"model-0000{i + 1}-of-00003.safetensors": names[i::3] for i in range(3)}
    for shard, part in shards.items():
        write_sparse(folder / shard, {name: shapes[name] for name in part})
    index = {"metadata": {}, "weight_map": {name: shard for shard, part in shards.items() for name in part}}
    for name, values in (
        ("config.json", official),
        ("model.safetensors.index.json", index),
        ("dataset_statistics.json", {key: statistics() for key in keys}),
        ("preprocessor_config.json", {"means": [[0.485, 0.456, 0.406], [0.5] * 3], "stds": [[0.229] * 3, [0.5] * 3]}),
        ("tokenizer.json", TOKENIZER),
    ):
        (folder / name).write_text(json.dumps(values))
    return folder


TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2}, "unk_token": "<unk>"},
}


def openvla_adapter(folder: Path, *, base: str, rank: int = 32, size: str = "7b") -> Path:
    """A LoRA adapter as peft writes it, for two kinds of layers of OpenVLA's language model."""
    folder.mkdir(parents=True, exist_ok=True)
    shapes = {}
    for name, shape in openvla_shapes(size).items():
        if re.search(r"self_attn\.(q|v)_proj\.weight$", name):
            layer = "base_model.model." + name.removesuffix(".weight")
            shapes[layer + ".lora_A.weight"] = (rank, shape[1])
            shapes[layer + ".lora_B.weight"] = (shape[0], rank)
    write_sparse(folder / "adapter_model.safetensors", shapes)
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank,
        "target_modules": ["q_proj", "v_proj"],
        "init_lora_weights": "gaussian",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@cache
def pi0_shapes(*, pi05: bool) -> dict[str, tuple[int, ...]]:
    """openpi's names and shapes of pi0's or pi0.5's tensors."""
    with torch.device("meta"):
        network = Pi0Network(NetworkShape(), adaptive=pi05)
    found = {_openpi_name(name): tuple(x.shape) for name, x in network.state_dict().items()}
    return found | {"paligemma_with_expert.gemma_expert.lm_head.weight": (VOCABULARY, 1024)}


def _openpi_name(name: str) -> str:
    vlm, expert = "paligemma_with_expert.paligemma.", "paligemma_with_expert.gemma_expert.model."
    for pattern, replacement in (
        (r"^vlm\.vision_tower\.", vlm + "model.vision_tower.vision_model."),
        (r"^vlm\.projector\.", vlm + "model.multi_modal_projector.linear."),
        (r"^vlm\.embed_tokens\.", vlm + "lm_head."),
        (r"^vlm\.(layers\.\d+\.)([qkvo]_proj)", vlm + r"model.language_model.\1self_attn.\2"),
        (r"^vlm\.", vlm + "model.language_model."),
        (r"^expert\.(layers\.\d+\.)([qkvo]_proj)", expert + r"\1self_attn.\2"),
        (r"^expert\.", expert),
    ):
        renamed, count = re.subn(pattern, replacement, name)
        if count:
            return renamed
    return name


def rlinf_pi0(folder: Path, data_set: str, *, pi05: bool = False, dims: int = 8, actions: int = 7) -> Path:
    """RLinf's layout of pi0 and pi0.5: the weights and `<data set>/norm_stats.json`, no `config.json`."""
    write_sparse(folder / "model.safetensors", pi0_shapes(pi05=pi05))
    file = folder / data_set / "norm_stats.json"
    file.parent.mkdir(parents=True)
    parts = {"state": dims, "actions": actions}
    values = {
        part: {"mean": [0.0] * n, "std": [1.0] * n, "q01": [-1.0] * n, "q99": [1.0] * n} for part, n in parts.items()
    }
    file.write_text(json.dumps({"norm_stats": values}))
    (folder / "README.md").write_text("# Model card\n")
    return folder


def openpi_pi0(folder: Path, data_set: str, *, pi05: bool = False, horizon: int | None = None) -> Path:
    """openpi's layout: statistics in `assets/`; with `horizon`, the `config.json` of a conversion from JAX."""
    rlinf_pi0(folder, data_set, pi05=pi05)
    statistics = folder / data_set / "norm_stats.json"
    place = folder / "assets" / data_set / "norm_stats.json"
    place.parent.mkdir(parents=True)
    statistics.rename(place)
    if horizon is not None:
        variants = {"paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m"}
        config = {"action_dim": 32, "action_horizon": horizon, **variants, "precision": "bfloat16"}
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def nano(folder: Path, family: str = "nano", **conventions: Any) -> Path:
    """`config.json` of a policy in this project's layout, without weights."""
    own = {"cameras": ["image"], "image_size": 16, "state_dim": 0, "chunk": 1, "action_dim": 2, **conventions}
    config = {"format_version": 1, "family": family, "conventions": own, "sampling": {}, "model": {}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
