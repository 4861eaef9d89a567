"""The files of a checkpoint in OpenVLA's layout, the settings that its makers keep in their scripts, and the configs of
fresh weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from vla_gym.errors import BadValue, unknown_name
from vla_gym.reading import read_text
from vla_policies.checkpoint_io.folder import OWN_KEY, read_config, read_once
from vla_policies.checkpoint_io.json_records import from_json, to_json
from vla_policies.conventions import Conventions
from vla_policies.modules.feature_cache import check_gib
from vla_policies.modules.lora_config import LoraSettings
from vla_policies.processing.observations import MOST_BYTES
from vla_policies.processing.statistics import Bounds

PREPROCESSOR_FILE = "preprocessor_config.json"
TOKENIZER_FILE = "tokenizer.json"
COMPANIONS = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
"""Small files of the layout that are copied unread."""
NUM_BINS = 256
"""V."""
OFT_ALONE = ("head", "use_state", "stop_token")
"""Settings without a meaning for OpenVLA."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Use of a checkpoint; in the original these are flags of the scripts. All may be given as `backbone_kwargs`;
    defaults follow from the data set the checkpoint was trained on."""

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
    """Type of the weights (heads stay float32): "auto" is the checkpoint's own on a GPU, else float32."""
    recompute: bool | None = None
    """Activation checkpointing: keep only block inputs for the backward pass. None: on a GPU where memory asks for it.
    """
    cache_features: float | None = None
    """GiB of projected image patches of frozen towers, kept from acting for the epochs of an update; 0 = none. None:
    PPO and GRPO keep as many as free memory allows."""
    quantization: Literal["int8", "nf4"] | None = None
    """Keep the linear layers of towers, projector and language model (not its head) in 8 or 4 bits, frozen."""
    lora: LoraSettings | None = None
    """Train adapters and the value head only."""

    def __post_init__(self) -> None:
        check_gib(self.cache_features)


@dataclass(frozen=True, kw_only=True)
class TowerShape:
    """One vision transformer."""

    width: int
    """Features of a patch."""
    depth: int
    heads: int
    mlp: int
    """Hidden features of a block's MLP."""
    image_size: int
    """Side of the image, pixels."""
    dino: bool
    """Class token, 4 register tokens and LayerScale (DINOv2), or an attention pool that is never used (SigLIP)."""


DINO, SIGLIP = "vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"
_TIMM: dict[str, tuple[dict[str, int], float]] = {
    DINO: ({"embed_dim": 1024, "depth": 24, "num_heads": 16}, 4.0),
    SIGLIP: ({"embed_dim": 1152, "depth": 27, "num_heads": 16}, 3.7362),
}
"""timm's id -> its shape, and the MLP's ratio."""


def tower_shape(timm_id: str, overrides: Mapping[str, int], image_size: int) -> TowerShape:
    """The shape that timm gives `timm_id`; `overrides` are timm's own keyword arguments."""
    if timm_id not in _TIMM:
        raise unknown_name("vision tower", timm_id, _TIMM)
    defaults, ratio = _TIMM[timm_id]
    shape = {**defaults, **overrides}
    if shape.keys() != defaults.keys() or shape["num_heads"] < 1 or shape["embed_dim"] % shape["num_heads"]:
        raise BadValue(
            f"timm_model_kwargs may set {', '.join(defaults)}, embed_dim a multiple of num_heads; got {dict(overrides)}"
        )
    return TowerShape(
        width=shape["embed_dim"],
        depth=shape["depth"],
        heads=shape["num_heads"],
        mlp=int(shape["embed_dim"] * ratio),
        image_size=image_size,
        dino=timm_id == DINO,
    )


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
        return self.official.get("norm_stats") or {}

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
        return tuple(tower_shape(*tower) for tower in zip(ids, overrides, sizes, strict=True))

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


def stored_dtype(official: Mapping[str, Any]) -> str:
    """Type of the weights in the files, under the name of transformers 4 or that of 5."""
    return str(official.get("torch_dtype") or official.get("dtype") or "float32")


# Files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Needed:
    """Keys of `config.json` that every checkpoint has."""

    timm_model_ids: tuple[str, ...]
    image_sizes: tuple[int, ...]
    text_config: Mapping[str, Any]
    pad_token_id: int
    pad_to_multiple_of: int
    n_action_bins: int


def read_official_files(
    folder: Path, config: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """(config without `OWN_KEY`, preprocessor, files) of a folder; absent ones raise."""
    where = f"'{folder / 'config.json'}'"
    official = {key: value for key, value in config.items() if key != OWN_KEY}
    needed = from_json(_Needed, official, where, others=True)
    words = needed.text_config.get("vocab_size")
    if type(words) is not int or not (
        words - NUM_BINS >= needed.pad_to_multiple_of >= 0 <= needed.pad_token_id < words
        and needed.n_action_bins == NUM_BINS
    ):
        raise BadValue(
            f"{where}: n_action_bins must be {NUM_BINS}, and vocab_size as many or more, with pad_token_id and "
            f"pad_to_multiple_of within it, got vocab_size {words}"
        )
    fresh = OWN_KEY in config and config[OWN_KEY].get("unnorm_key") is None
    paths = {name: folder / name for name in (TOKENIZER_FILE, *COMPANIONS)}
    needed_files = () if fresh else (TOKENIZER_FILE,)
    files = {
        name: read_once(path, lambda path: read_text(path, most=MOST_BYTES))
        for name, path in paths.items()
        if name in needed_files or path.is_file()
    }
    return official, read_config(folder, PREPROCESSOR_FILE), files


def check_options(options: Mapping[str, Any], family: str) -> None:
    """Raise unless every option is a field of `Settings` that the family reads."""
    known = [field.name for field in fields(Settings) if family != "openvla" or field.name not in OFT_ALONE]
    for key in options:
        if key not in known:
            raise unknown_name(f"setting in backbone_kwargs of {family}", key, known)


# Fresh weights ----------------------------------------------------------------------------------------


SIZES: dict[str, tuple[int, tuple[tuple[int, int, int], ...], tuple[int, ...]]] = {
    "tiny": (56, ((32, 3, 2), (48, 3, 3)), (64, 176, 2, 4)),
    "100m": (224, ((384, 8, 6), (384, 8, 6)), (512, 1376, 12, 8)),
    "7b": (224, ((1024, 24, 16), (1152, 27, 16)), ()),
}
"""Name -> image side; `_TOWER` of the two timm models; `_TEXT` of the language model, () = Llama-2-7B's."""
_TOWER = ("embed_dim", "depth", "num_heads")
_TEXT = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def fresh_config(conventions: Conventions, options: Mapping[str, Any], base: Settings, family: str) -> OpenVLAConfig:
    """The config of fresh weights: from a `size` and settings, or from the values of an `OpenVLAConfig`."""
    if "official" in options:
        return from_json(OpenVLAConfig, options, f"backbone_kwargs of {family}")
    size = options.get("size")
    if size not in SIZES:
        raise unknown_name(f"size of {family}", str(size), SIZES)
    own = {key: value for key, value in options.items() if key != "size"}
    check_options(own, family)
    given = replace(base, cameras=conventions.cameras, chunk=conventions.chunk)
    settings = from_json(Settings, {**to_json(given), **own}, f"backbone_kwargs of {family}")
    return OpenVLAConfig(
        official=_official(*SIZES[size]),
        preprocessor={
            "means": [(0.485, 0.456, 0.406), (0.5,) * 3],
            "stds": [(0.229, 0.224, 0.225), (0.5,) * 3],
        },
        files={},
        unnorm_key=None,
        settings=settings,
    )


def _official(image_size: int, towers: tuple[tuple[int, ...], ...], text: tuple[int, ...]) -> dict[str, Any]:
    return {
        "model_type": "openvla",
        "architectures": ["OpenVLAForActionPrediction"],
        "timm_model_ids": [DINO, SIGLIP],
        "timm_model_kwargs": [dict(zip(_TOWER, tower, strict=True)) for tower in towers],
        "image_sizes": [image_size, image_size],
        "image_resize_strategy": "resize-naive",
        "use_fused_vision_backbone": True,
        "n_action_bins": 256,
        "pad_token_id": 32000,
        "pad_to_multiple_of": 64,
        "norm_stats": {},
        "text_config": {"model_type": "llama", "vocab_size": 32064, "pad_token_id": 32000, **dict(zip(_TEXT, text))},
        "torch_dtype": "bfloat16",
    }
