"""Published folders: lerobot's (`config.json` with a `type`), openpi's PyTorch conversions, and RLinf's fine-tunes.

lerobot's of before 0.4 have statistics among the weights and, written with transformers before 4.52, other names.

RLinf's have openpi's tensors, often no `config.json`, and statistics in `<data set>/norm_stats.json` beside them.

Both have the same tensors; lerobot's names begin with `model.`. The token embedding may lie under its own
name, under the tied language head's, or under both. The expert's own language head and embedding are unused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vla_gym.errors import BadValue, unknown_name
from vla_gym.reading import read_json_object
from vla_policies.actions.flow import FlowSettings
from vla_policies.checkpoint_io.folder import CONFIG_FILE, has_weights, read_once
from vla_policies.checkpoint_io.json_records import from_json
from vla_policies.checkpoint_io.weights import read_shapes
from vla_policies.model_folder import Maker, ModelFolder
from vla_policies.modules.streams import GemmaShape
from vla_policies.pi0.config import FULL, VARIANTS, NetworkShape, Pi0Config, Preprocessing, VisionShape
from vla_policies.pi0.processor import TOKENIZER_FILE
from vla_policies.processing.statistics import Statistics, choose_key, statistics_of_numbers
from vla_policies.vlm_flow.config import WORDS
from vla_policies.vlm_flow.lerobot import (
    check_supported,
    is_statistic,
    lerobot_statistics,
    normalizations,
    statistics_in_weights,
)

OPENPI_KEYS = ("action_dim", "action_horizon", "paligemma_variant", "action_expert_variant")
"""Keys of `config.json` of an openpi conversion, beside `precision`."""
IMPLIED = "implied_by_tensors"
"""Key of `implied_config`, which stands in for a `config.json`."""
OPENPI_VISION = VisionShape()
OPENPI_VOCABULARY = 257152
"""Not in openpi's `config.json`: SigLIP so400m/14 at 224 pixels, PaliGemma's vocabulary."""

_OF_DATA_SETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "physical-intelligence/libero": {"pi0": {"delta_dims": 6}, "pi05": {"prompt_state": "none"}},
    "physical-intelligence/maniskill": {
        "pi0": {"binarize_gripper": True},
        "pi05": {"binarize_gripper": True, "prompt_state": "none"},
    },
    "lerobot/metaworld_mt50": {"pi05": {"prompt_state": "none"}},
}
"""Data set -> family -> preprocessing in the training code of openpi 15a9616a and RLinf a3816b59, and in no file of the
checkpoints: LIBERO's actions relative to the state, a gripper of 0 and 1 on the WidowX, texts without the state."""

_OPENPI_STATISTICS, _OPENPI_ASSETS = "norm_stats.json", "assets"
RLINF_NAME = r"(?i)^RLinf-Pi0"
"""In the names of those that RLinf published."""
_STREAMS = "paligemma_with_expert."
_WIDTH_OF = {
    "paligemma": "vlm.layers.0.mlp.gate_proj.weight",
    "action_expert": "expert.layers.0.mlp.gate_proj.weight",
}
"""Stream -> a tensor of `Pi0Network` whose second side is the stream's width."""
_RENAMES: tuple[tuple[str, str], ...] = (
    (r"paligemma\.(model\.)?vision_tower\.(vision_model\.)?", "vlm.vision_tower."),
    (r"paligemma\.(model\.)?multi_modal_projector\.linear\.", "vlm.projector."),
    (r"paligemma\.(model\.)?language_model\.(model\.)?embed_tokens\.", "vlm.embed_tokens."),
    (r"paligemma\.(language_model\.)?lm_head\.", "vlm.embed_tokens."),
    (r"paligemma\.(model\.)?language_model\.(model\.)?(layers\.\d+\.)self_attn\.", r"vlm.\3"),
    (r"paligemma\.(model\.)?language_model\.(model\.)?", "vlm."),
    (r"gemma_expert\.model\.(layers\.\d+\.)self_attn\.", r"expert.\1"),
    (r"gemma_expert\.model\.", "expert."),
)
"""Published name, after `paligemma_with_expert.`, to that of `Pi0Network`; the first match counts."""
_UNUSED = re.compile(r"paligemma_with_expert\.gemma_expert\.(lm_head|model\.embed_tokens)\.weight|noise_head\..+")
"""The expert's table of words, and Flow-Noise's network, which has other layers at RLinf's and starts anew."""
_CRITIC = re.compile(r"value_head\.mlp\.(\d+)\.weight")


def is_openpi(config: Mapping[str, Any]) -> bool:
    """Whether `config.json` is of openpi's conversion."""
    return "type" not in config and (IMPLIED in config or all(key in config for key in OPENPI_KEYS))


def implied_config(folder: Path) -> dict[str, Any] | None:
    """openpi's `config.json` as far as the tensors' shapes say it; None where the weights are of no openpi network.

    They do not say the horizon.
    """
    if not has_weights(folder):
        return None
    shapes = {_network_name(name.removeprefix("model.")): x.shape for name, x in read_shapes(folder).items()}
    if not {"action_in_proj.weight", *_WIDTH_OF.values()} <= shapes.keys():
        return None
    of_width = {variant.width: name for name, variant in VARIANTS.items()}
    widths = {f"{stream}_variant": int(shapes[tensor][1]) for stream, tensor in _WIDTH_OF.items()}
    variants = {name: of_width.get(width, f"{width} wide") for name, width in widths.items()}
    return {IMPLIED: True, "action_dim": int(shapes["action_in_proj.weight"][1]), **variants}


def read_config(
    folder: Path,
    config: Mapping[str, Any],
    family: str,
    unnorm_key: str | None,
    horizon: int | None = None,
    *,
    robot: bool = True,
) -> Pi0Config:
    """The config of a published folder, statistics included; `horizon` is H where it is not the folder's own.

    Without `robot` the statistics, and what else goes with their data set, are left out as another robot's.
    """
    where, openpi, usual = f"'{folder / CONFIG_FILE}'", is_openpi(config), FULL[family]
    if openpi:
        if IMPLIED in config and horizon is None:
            raise BadValue(
                f"'{folder}' has no config.json, and its weights do not say how many actions they predict at once; "
                "give backbone_kwargs horizon (openpi: 50 for pi0_libero, 10 for pi05_libero)"
            )
        network, max_tokens, num_steps = _openpi_network(config, where), usual.preprocessing.max_tokens, 10
    else:
        check_supported(folder, config)
        settings = from_json(LerobotSettings, config, where, others=True)
        network, num_steps = settings.network(where), settings.num_inference_steps or settings.num_steps
        max_tokens = settings.tokenizer_max_length or usual.preprocessing.max_tokens
    network = network if horizon is None else replace(network, horizon=horizon)
    statistics = statistics_of(folder, config)
    if not statistics and (others := _openpi_files(folder)):
        raise BadValue(
            f"{where} is lerobot's and names no statistics, but '{others[0].relative_to(folder)}' is openpi's: "
            "move config.json away to read the folder as openpi's or RLinf's"
        )
    key = choose_key(statistics, unnorm_key, f"'{folder}'") if robot else None
    chosen = statistics[key] if key is not None else {}
    state_kind, action_kind = normalizations(config, usual.preprocessing.normalization, where)
    normalization = state_kind or action_kind or usual.preprocessing.normalization
    preprocessing = Preprocessing(
        normalization=normalization,
        epsilon=1e-6 if openpi else 1e-8 if normalization == "mean_std" else 0.0,
        epsilon_back=openpi,
        data_set=key,
        state=chosen.get("state") if state_kind else None,
        action=chosen.get("action") if action_kind else None,
        prompt_state="none" if family == "pi0" else "exact" if openpi else "padded",
        max_tokens=max_tokens,
        resize="pil" if openpi else "torch",
        tokenizer=WORDS if words_for_tiny(folder, config) else "paligemma",
    )
    if openpi:
        preprocessing = replace(preprocessing, **_OF_DATA_SETS.get(key or "", {}).get(family, {}))
    return Pi0Config(
        network=network,
        preprocessing=preprocessing,
        learning=replace(usual.learning, **_critic_settings(folder, network)),
        flow=FlowSettings(num_steps=num_steps),
    )


@dataclass(frozen=True, kw_only=True)
class LerobotSettings:
    """Settings of lerobot's `config.json`, as far as they are read here."""

    chunk_size: int
    max_action_dim: int
    max_state_dim: int
    image_resolution: tuple[int, int] = (224, 224)
    paligemma_variant: str = "gemma_2b"
    action_expert_variant: str = "gemma_300m"
    min_period: float = 4e-3
    max_period: float = 4.0
    num_inference_steps: int | None = None
    num_steps: int = 10
    tokenizer_max_length: int | None = None
    tiny_overrides: Mapping[str, Any] = field(default_factory=dict)
    """Sizes of small random networks."""

    def network(self, where: str) -> NetworkShape:
        """Sizes of the network."""
        if len(set(self.image_resolution)) != 1:
            raise BadValue(f"{where}: image_resolution must be square, got {list(self.image_resolution)}")
        tiny = self.tiny_overrides
        vision = from_json(VisionShape, tiny.get("vision", {}), f"vision of {where}")
        vlm, expert = (
            from_json(GemmaShape, tiny[name], where) if name in tiny else _variant(name, where)
            for name in (self.paligemma_variant, self.action_expert_variant)
        )
        return NetworkShape(
            vision=replace(vision, image_size=self.image_resolution[0]),
            vlm=vlm,
            expert=expert,
            horizon=self.chunk_size,
            action_width=self.max_action_dim,
            state_width=self.max_state_dim,
            min_period=self.min_period,
            max_period=self.max_period,
            vocab_size=int(tiny.get("vocab_size", OPENPI_VOCABULARY)),
        )


def _critic_settings(folder: Path, network: NetworkShape) -> dict[str, Any]:
    """Sizes and input of the critic among the weights, which only their shapes tell; {} = there is none."""
    shapes = read_shapes(folder) if has_weights(folder) else {}
    layers = {int(found[1]): x.shape for name, x in shapes.items() if (found := _CRITIC.fullmatch(name))}
    if len(layers) < 2:
        return {}
    sizes = [layers[place] for place in sorted(layers)]
    settings: dict[str, Any] = {"value_hidden": tuple(int(shape[0]) for shape in sizes[:-1])}
    features = {network.expert.width: "expert", network.vlm.width: "prefix"}
    if len(features) == 2 and int(sizes[0][1]) in features:
        settings["value_feature"] = features[int(sizes[0][1])]
    return settings


def words_for_tiny(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the folder is a small random network without a tokenizer."""
    return "tiny_overrides" in config and not (folder / TOKENIZER_FILE).is_file()


def has_time_mlp(folder: Path) -> bool:
    """Whether the expert's norms are conditioned on time, as in pi0.5 only."""
    return any(name.removeprefix("model.") == "time_mlp_in.weight" for name in read_shapes(folder))


def network_names(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Tensors under the names of `Pi0Network`, without unused ones and statistics; unknown names stay."""
    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        bare = name.removeprefix("model.")
        if _UNUSED.fullmatch(bare) or is_statistic(name):
            continue
        renamed = _network_name(bare)
        if renamed in out and not tensor.is_meta and not torch.equal(out[renamed], tensor):
            raise BadValue(f"'{path}' holds two different token embeddings; '{name}' must equal the tied one")
        out[renamed] = tensor
    return out


def _network_name(bare: str) -> str:
    if not bare.startswith(_STREAMS):
        return bare
    rest = bare.removeprefix(_STREAMS)
    for pattern, replacement in _RENAMES:
        renamed, count = re.subn(f"^{pattern}", replacement, rest)
        if count:
            return renamed
    return bare


def _openpi_network(config: Mapping[str, Any], where: str) -> NetworkShape:
    known = (*OPENPI_KEYS, "precision", IMPLIED)
    for key in config:
        if key not in known:
            raise unknown_name(f"setting in {where}", key, known)
    return NetworkShape(
        vision=OPENPI_VISION,
        vocab_size=OPENPI_VOCABULARY,
        vlm=_variant(config["paligemma_variant"], where),
        expert=_variant(config["action_expert_variant"], where),
        horizon=int(config.get("action_horizon", NetworkShape.horizon)),
        action_width=int(config["action_dim"]),
        state_width=int(config["action_dim"]),
    )


def _variant(name: str, where: str) -> GemmaShape:
    if name not in VARIANTS:
        raise unknown_name(f"Gemma variant in {where}", name, VARIANTS)
    return VARIANTS[name]


def statistics_of(folder: Path, config: Mapping[str, Any]) -> dict[str, dict[str, Statistics]]:
    """Data set -> "state" and "action" -> its statistics."""
    if is_openpi(config):
        return _openpi_statistics(folder)
    return lerobot_statistics(folder) or statistics_in_weights(folder)


def maker_of(model: ModelFolder) -> Maker | None:
    """Whose program a folder was made with: openpi keeps statistics in `assets/`, RLinf beside the weights.

    None for openpi's tensors without a `config.json` and statistics.
    """
    if not is_openpi(model.config):
        return "lerobot"
    if any(re.search(RLINF_NAME, name) for name in model.names):
        return "rlinf"
    if _openpi_files(model.folder / _OPENPI_ASSETS):
        return "openpi"
    if _openpi_statistics(model.folder):
        return "rlinf"
    return None if IMPLIED in model.config else "openpi"


def _openpi_statistics(folder: Path) -> dict[str, dict[str, Statistics]]:
    """From `assets/<data set>/norm_stats.json`, or `<data set>/norm_stats.json`; names may have a slash."""
    found = {}
    for path in _openpi_files(folder / _OPENPI_ASSETS) or _openpi_files(folder):
        parts = read_once(path, read_json_object)["norm_stats"]
        entry = {"state": statistics_of_numbers(parts["state"]), "action": statistics_of_numbers(parts["actions"])}
        name = path.parent.relative_to(folder).as_posix()
        found[name.removeprefix(f"{_OPENPI_ASSETS}/")] = entry
    return found


def _openpi_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"**/{_OPENPI_STATISTICS}"))
