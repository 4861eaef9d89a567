"""The files of a checkpoint in OpenVLA's layout, and the settings that its makers keep in their scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vla_gym.errors import BadValue, check_integer, unknown_name
from vla_gym.reading import read_text
from vla_policies.checkpoint_io.folder import OWN_KEY as OWN_KEY
from vla_policies.checkpoint_io.folder import read_config, read_once
from vla_policies.checkpoint_io.json_records import from_json, to_json
from vla_policies.modules.feature_cache import check_gib
from vla_policies.openvla.vision import TowerShape, tower_shape
from vla_policies.processing.norm_stats import Bounds
from vla_policies.processing.tokenizer_files import MOST_BYTES

PREPROCESSOR_FILE = "preprocessor_config.json"
TOKENIZER_FILE = "tokenizer.json"
COMPANIONS = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
"""Small files of the layout that are copied unread."""

NUM_BINS = 256
"""V."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Use of a checkpoint; in the original these are flags of the scripts. All but `lora` may be given
    as `backbone_kwargs`; defaults follow from the data set the checkpoint was trained on."""

    cameras: tuple[str, ...] = ("image",)
    """Observation keys of its images, main camera first."""
    camera_resize: Literal["bicubic", "lanczos3", "jpeg_lanczos3"] = "bicubic"
    """Resize of camera images: bicubic, TensorFlow's Lanczos-3, or that after the JPEG round trip (LIBERO)."""
    center_crop: bool = False
    """Crop to the central 0.9 of the area and stretch (after training with random crops, as for LIBERO)."""
    bounds: Bounds = "q01_q99"
    """Statistics that became -1 and 1 in training."""
    width_epsilon: float = 0.0
    """Added to their distance when actions are un-normalised: 1e-8 in OpenVLA-OFT."""
    gripper: Literal["zero_to_one_opens", "as_is"] = "as_is"
    """Meaning of the last, un-normalised number: 1 open and 0 closed, or the environment's own."""
    binarize_gripper: bool = True
    """Whether the gripper is only fully open or closed."""
    chunk: int = 1
    """K, actions per decision."""
    action_dims: tuple[int, ...] | None = None
    """Numbers of an action that the environment takes, in its order, e.g. (0, 1, 2, 6) of 7 on Meta-World; None = all.
    Only these are scored. For OpenVLA-OFT, whose numbers do not depend on one another."""
    use_state: bool = False
    """Read the proprioceptive state (OpenVLA-OFT with a proprio projector)."""
    head: Literal["tokens", "l1"] = "tokens"
    """Action tokens, or the regression head of OpenVLA-OFT's own fine-tunes (acts, no training by RL)."""
    stop_token: bool = True
    """OpenVLA-OFT: `</s>` after the action slots, as in the original; False for checkpoints by RLinf."""
    value_outputs: int = 1
    """1, or the chunk length for checkpoints whose critic has a value per action."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the weights (heads stay float32): "auto" is the checkpoint's own on a GPU, else float32."""
    recompute: bool = False
    """Activation checkpointing: keep only block inputs for the backward pass."""
    cache_features: float = 0.0
    """GiB of projected image patches of frozen towers, kept from acting for the epochs of an update; 0 = none."""
    quantization: Literal["int8", "nf4"] | None = None
    """Keep the linear layers of towers, projector and language model (not its head) in 8 or 4 bits, frozen."""
    lora: Mapping[str, Any] | None = None
    """`LoraSettings` as a mapping, e.g. `{"rank": 32}`: train adapters and the value head only."""

    def __post_init__(self) -> None:
        check_gib(self.cache_features)


@dataclass(frozen=True, kw_only=True)
class OpenVLAConfig:
    """All that a network and its processor are built from."""

    official: Mapping[str, Any]
    """`config.json` as published; its `norm_stats` with every `dataset_statistics.json` merged over them."""
    preprocessor: Mapping[str, Any]
    files: Mapping[str, str]
    """Contents of `tokenizer.json` (absent: byte tokens) and of the companion files."""
    unnorm_key: str | None
    """Data set in use, a key of `norm_stats`; None when there are none."""
    settings: Settings

    @property
    def statistics(self) -> Mapping[str, Any]:
        """Data set -> its statistics."""
        found: Mapping[str, Any] = self.official.get("norm_stats") or {}
        return found

    def numbers_of(self, action_dim: int) -> int:
        """Numbers that the network gives for an action of which the environment takes `action_dim`."""
        if self.settings.action_dims is None or self.unnorm_key is None:
            return action_dim
        action = self.statistics[self.unnorm_key]["action"]
        return len(action["q01" if self.settings.bounds == "q01_q99" else "min"])

    @property
    def towers(self) -> tuple[TowerShape, ...]:
        """Shapes of the image towers, the main one first."""
        ids, sizes = self.official["timm_model_ids"], self.official["image_sizes"]
        overrides = self.official.get("timm_model_kwargs") or [{}] * len(ids)
        return tuple(
            tower_shape(timm_id, dict(kw), size) for timm_id, kw, size in zip(ids, overrides, sizes, strict=True)
        )

    @property
    def image_size(self) -> int:
        """Side of the towers' square image, pixels."""
        return int(self.official["image_sizes"][0])

    @property
    def first_action_id(self) -> int:
        """Token id of action token 0; the next 255 ids are the others, and larger ids mean smaller numbers."""
        words = int(self.official["text_config"]["vocab_size"]) - int(self.official["pad_to_multiple_of"])
        return words - NUM_BINS

    @property
    def pad_id(self) -> int:
        return int(self.official["pad_token_id"])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; inverse of `config_from_json`."""
        return {
            "official": dict(self.official),
            "preprocessor": dict(self.preprocessor),
            "files": dict(self.files),
            "unnorm_key": self.unnorm_key,
            "settings": to_json(self.settings),
        }


def stored_dtype(official: Mapping[str, Any]) -> str:
    """Type of the weights in the files, under the name of transformers 4 or that of 5."""
    return str(official.get("torch_dtype") or official.get("dtype") or "float32")


def config_from_json(values: Mapping[str, Any], where: str) -> OpenVLAConfig:
    """Inverse of `OpenVLAConfig.to_json`."""
    settings = from_json(Settings, values["settings"], f"settings of {where}")
    return from_json(OpenVLAConfig, {**values, "settings": settings}, where)


_NEEDED = (
    *("timm_model_ids", "image_sizes", "text_config"),
    *("pad_token_id", "pad_to_multiple_of", "n_action_bins"),
)
OfficialFiles = tuple[dict[str, Any], dict[str, Any], dict[str, str]]


def read_official_files(folder: Path, config: Mapping[str, Any]) -> OfficialFiles:
    """(config without `OWN_KEY`, preprocessor, files) of a folder; absent ones raise."""
    where = folder / "config.json"
    official = {key: value for key, value in config.items() if key != OWN_KEY}
    if lacking := [key for key in _NEEDED if key not in official]:
        raise BadValue(f"'{where}' lacks {', '.join(lacking)}, which every OpenVLA checkpoint has")
    if official["n_action_bins"] != NUM_BINS:
        raise BadValue(f"'{where}' has n_action_bins {official['n_action_bins']}, OpenVLA has {NUM_BINS}")
    words = official["text_config"]["vocab_size"]
    check_integer(f"vocab_size of '{where}'", words, NUM_BINS)
    check_integer(f"pad_token_id of '{where}'", official["pad_token_id"], 0, words - 1)
    check_integer(f"pad_to_multiple_of of '{where}'", official["pad_to_multiple_of"], 0, words - NUM_BINS)
    fresh = OWN_KEY in config and config[OWN_KEY].get("unnorm_key") is None
    for name in (PREPROCESSOR_FILE,) if fresh else (TOKENIZER_FILE, PREPROCESSOR_FILE):
        if not (folder / name).is_file():
            raise BadValue(f"checkpoint folder '{folder}' lacks {name}, which every OpenVLA checkpoint has")
    names = [TOKENIZER_FILE, *COMPANIONS]
    files = {name: read_once(folder / name, _read_file) for name in names if (folder / name).is_file()}
    return official, read_config(folder, PREPROCESSOR_FILE), files


def _read_file(path: Path) -> str:
    return read_text(path, most=MOST_BYTES)


OFT_ALONE = ("head", "use_state", "stop_token")
"""Settings without a meaning for OpenVLA."""


def check_options(options: Mapping[str, Any], family: str) -> None:
    """Raise unless every option is a field of `Settings` that the family reads."""
    known = [name for name in Settings.__dataclass_fields__ if family != "openvla" or name not in OFT_ALONE]
    for key in options:
        if key not in known:
            raise unknown_name(f"setting in backbone_kwargs of {family}", key, known)
