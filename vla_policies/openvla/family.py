"""Shared by OpenVLA and OpenVLA-OFT: network, processor, critic; OpenVLA's folder layout, with its settings and
conventions, read and written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from vla_gym.errors import BadValue
from vla_gym.specs import ActionSpec
from vla_policies.actions.sampling import ActionCodec, Sampling
from vla_policies.backbone import Backbone, Header
from vla_policies.checkpoint_io.folder import (
    ADAPTER_SETTINGS,
    CONFIG_FILE,
    OWN_KEY,
    has_weights,
    write_json,
    write_text,
)
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
from vla_policies.lora_backbone import LoraBackbone, merged_state
from vla_policies.model_folder import FolderFacts, ModelFolder, Request
from vla_policies.modules.feature_cache import GIB, FeatureCache
from vla_policies.modules.heads import ValueHead
from vla_policies.modules.lora_config import LoraSettings
from vla_policies.modules.quantization import check_installed, packed
from vla_policies.openvla.config import (
    PREPROCESSOR_FILE,
    OpenVLAConfig,
    Settings,
    check_options,
    fresh_config,
    read_official_files,
    stored_dtype,
)
from vla_policies.openvla.network import LANGUAGE_TARGETS, LORA_TARGETS, PrismaticNetwork, initialise
from vla_policies.openvla.processor import OpenVLAProcessor
from vla_policies.processing.statistics import STATISTICS_FILE, choose_key, normaliser, read_statistics
from vla_policies.types import PolicyInputs

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


class OpenVLAFamily(LoraBackbone):
    """Base of both families; subclasses implement decoding."""

    recompute_option: ClassVar[str | None] = "recompute"
    lora_targets: ClassVar[tuple[str, ...] | str] = LORA_TARGETS
    base_settings: ClassVar[Settings]
    """Settings of a checkpoint without its own."""

    codec: ActionCodec

    def __init__(self, conventions: Conventions, config: OpenVLAConfig, where: str) -> None:
        Backbone.__init__(self, conventions)
        self.config = config
        if config.settings.quantization is not None:
            check_installed(config.settings.quantization)
        self.processor = OpenVLAProcessor(config, conventions, where)
        self.codec = self.processor.codec
        # Without memory: 7.5 billion random numbers would be overwritten.
        with torch.device("meta"):
            self.network = PrismaticNetwork(config)
        outputs = config.settings.value_outputs
        if outputs not in (1, conventions.chunk):
            raise BadValue(
                f"value_outputs must be 1, or {conventions.chunk} for a value per step of the chunk, got {outputs}"
            )
        self.value_head = ValueHead(self.network.width, outputs)

    @classmethod
    def wants_fresh(cls, options: Mapping[str, Any]) -> bool:
        return "size" in options or "official" in options

    @classmethod
    def planned_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        if "official" in options:
            settings = dict(options["settings"])
            if settings["dtype"] == "auto":
                settings["dtype"] = stored_dtype(options["official"])
            return {**options, "settings": settings}
        # The layout of images and actions makes no difference to the network's size.
        left_out = ("action_dims", "camera_resize", "center_crop")
        found = {key: value for key, value in options.items() if key not in left_out}
        if found.get("dtype", "auto") == "auto":
            found["dtype"] = "bfloat16"
        return {"size": "7b", **found}

    @classmethod
    def fresh(cls, conventions: Conventions, options: Mapping[str, Any]) -> Self:
        config = fresh_config(conventions, options, cls.base_settings, cls.family)
        state_dim = conventions.state_dim if config.settings.use_state else 0
        fitted = replace(conventions, image_size=config.image_size, state_dim=state_dim)
        backbone = cls(fitted, config, f"fresh {cls.family}")
        backbone.network.to(backbone.weight_dtype).to_empty(device=torch.get_default_device())
        initialise(backbone.network)
        backbone.value_head.initialise()
        if config.settings.quantization is not None:
            backbone.network.quantize(config.settings.quantization, backbone.weight_dtype)
        backbone.attach_lora()
        return backbone

    @classmethod
    def from_config(cls, conventions: Conventions, config: Mapping[str, Any], where: str) -> Self:
        return cls(conventions, from_json(OpenVLAConfig, config, where), where)

    @classmethod
    def facts(cls, model: ModelFolder) -> FolderFacts:
        return FolderFacts(data_sets=list(read_statistics(model.config, model.places)[0]))

    @classmethod
    def read_official(cls, model: ModelFolder, request: Request) -> Header:
        """Header of a folder: the user's options over the folder's own settings; without those, over `makers_settings`
        of the data set that is used, over `base_settings`."""
        check_options(request.options, cls.family)
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
            base = replace(cls.base_settings, **{**found_settings, **cls.makers_settings(model, chosen)})
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
        return Header(cls.family, conventions, Sampling() if own is None else own.sampling, to_json(config))

    @classmethod
    def makers_settings(cls, model: ModelFolder, unnorm_key: str | None) -> Mapping[str, Any]:
        """The family's settings for a published model and its data set; None = no data set."""
        return {}

    @classmethod
    def read_as(cls, model: Mapping[str, Any]) -> dict[str, Any]:
        settings = model["settings"]
        names = ("head", "camera_resize", "center_crop", "bounds", "gripper", "action_dims", "stop_token")
        return {"statistics": model["unnorm_key"] or "none", **{name: settings[name] for name in names}}

    @classmethod
    def dtype_options(cls, dtype: str) -> dict[str, Any]:
        return {"dtype": dtype}

    def value_parameters(self) -> Iterator[nn.Parameter]:
        return self.value_head.parameters()

    @property
    def step_values(self) -> bool:
        return self.config.settings.value_outputs == self.conventions.chunk

    def prepare(self, obs: Mapping[str, Tensor]) -> PolicyInputs:
        return self.processor.prepare(obs)

    def features(self, inputs: PolicyInputs) -> tuple[Tensor, ...]:
        return (self.network.encode_images(inputs.pixels_BMCHW),)

    def encode_images(self, inputs: PolicyInputs) -> Tensor:
        """Projected patches of all images, `[B, M * P, D]`."""
        return self.features(inputs)[0] if inputs.features is None else inputs.features[0]

    def set_recompute(self, on: bool) -> None:
        self.network.recompute = on

    def keep_features(self, max_bytes: int | None = None) -> None:
        asked = self.config.settings.cache_features
        if asked is None and self.kept is None and self.network.image_encoder_frozen:
            self.kept = FeatureCache(max_bytes)

    def state_values(self, hidden_BD: Tensor) -> Tensor:
        """Values `[B]` from the hidden states at the prompts' ends; of a value per action, the first."""
        return self.value_head(hidden_BD)[:, 0]

    # Checkpoints ----------------------------------------------------------------------------------

    @property
    def weight_dtype(self) -> torch.dtype:
        """Type of the network's weights; the heads are float32 in any case."""
        asked, stored = self.config.settings.dtype, stored_dtype(self.config.official)
        half = self.built_for_gpu and stored == "bfloat16" if asked == "auto" else asked == "bfloat16"
        return torch.bfloat16 if half else torch.float32

    def load(self, folder: Path, beside: Sequence[Path] = ()) -> None:
        scheme = self.config.settings.quantization
        tensors = {name: x for name, x in read_tensors(folder).items() if not name.endswith(_ROTARY)}
        critic = {
            name.removeprefix(_VALUE_PREFIX): tensors.pop(name)
            for name in list(tensors)
            if name.startswith(_VALUE_PREFIX)
        }
        if (folder / VALUE_HEAD_FILE).is_file():
            critic = read_critic(folder)
        if scheme is None:
            fill(self.network, tensors, folder, lambda _: self.weight_dtype)
        else:
            check_tensors(folder, tensors, self.network.state_dict())
            self.network.quantize(scheme, self.weight_dtype)
            # One tensor after the other: of the whole weights only what the files map is ever there.
            self.network.load_state_dict(dict(packed(self.network, tensors, self.weight_dtype)), assign=True)
        if critic:
            fill(self.value_head, critic, folder, lambda _: torch.float32)
        else:
            self.value_head.initialise()
        self.load_heads([*beside, folder])
        self.attach_lora()

    def load_heads(self, folders: Sequence[Path], *, needed: bool = True) -> None:
        """Read the weights that a family keeps beside the common ones, each from the first folder that has it."""

    def save_heads(self, folder: Path) -> None:
        """Write the files of `load_heads`."""

    def save(self, folder: Path, config: Mapping[str, Any]) -> None:
        saved = self.config
        if self.has_adapter:
            # Merged, no weights are rounded any more and all of them train.
            saved = replace(saved, settings=replace(saved.settings, quantization=None, cache_features=None))
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder, merged_state(self.network))
        write_critic(folder, self.value_head)
        for name, content in saved.files.items():
            write_text(folder / name, content)
        write_json(folder / PREPROCESSOR_FILE, saved.preprocessor, sort_keys=True)
        write_json(folder / STATISTICS_FILE, saved.statistics, sort_keys=True)
        own_settings = self._own_settings(saved, config["sampling"])
        write_json(folder / CONFIG_FILE, {**saved.official, OWN_KEY: own_settings}, sort_keys=True)
        self.save_heads(folder)

    # Adapters -------------------------------------------------------------------------------------

    @property
    def adapted(self) -> nn.Module:
        return self.network

    @property
    def lora(self) -> LoraSettings | None:
        return self.config.settings.lora

    def set_lora(self, settings: LoraSettings | None) -> None:
        self._set(lora=settings)

    def load_beside(self, folder: Path) -> None:
        if (folder / VALUE_HEAD_FILE).is_file():
            fill(self.value_head, read_critic(folder), folder, lambda _: torch.float32)
        self.load_heads([folder], needed=False)

    def save_beside(self, folder: Path, config: Mapping[str, Any]) -> None:
        write_critic(folder, self.value_head)
        self.save_heads(folder)
        write_json(folder / ADAPTER_SETTINGS, {OWN_KEY: self._own_settings(self.config, config["sampling"])})
        if self.config.statistics:
            write_json(folder / STATISTICS_FILE, self.config.statistics, sort_keys=True)

    def finish(self) -> None:
        self.network.freeze_unused()
        asked = self.config.settings.cache_features
        self.kept = FeatureCache(int(asked * GIB)) if asked else None
        if asked and not self.network.image_encoder_frozen:
            raise BadValue(
                "cache_features is for frozen image towers, and these are trained; adapt the language model alone "
                f"(lora: {{rank: 32, targets: [{', '.join(LANGUAGE_TARGETS)}]}}) or set cache_features: 0"
            )

    def merge_adapter(self) -> None:
        if (scheme := self.config.settings.quantization) is not None:
            raise BadValue(
                f"weights kept in {scheme} cannot take the adapter up; open its folder over the original weights, with "
                "backbone_kwargs quantization: null, and merge there"
            )
        super().merge_adapter()
        # All of it trains from here on, so no features can be cached.
        self._set(cache_features=None)
        self.network.requires_grad_(True)
        self.finish()

    def _own_settings(self, config: OpenVLAConfig, sampling: Any) -> dict[str, Any]:
        """The values of `OwnSettings`; `sampling` is given as JSON."""
        spec = self.conventions.action_spec
        return {
            "family": self.family,
            "unnorm_key": config.unnorm_key,
            "action_dim": self.conventions.action_dim,
            "settings": to_json(replace(config.settings, lora=None)),
            "sampling": sampling,
            "action_spec": None if spec is None else to_json(spec),
        }

    def _set(self, **settings: Any) -> None:
        self.config = replace(self.config, settings=replace(self.config.settings, **settings))


def _emitted_spec(settings: Settings, unnorm_key: str | None, wanted: ActionSpec | None) -> ActionSpec | None:
    """The policy's action convention: the gripper is the environment's, the rest the data's."""
    if settings.gripper == "as_is":
        return wanted
    data = next((spec for name, spec in DATA_SPECS.items() if (unnorm_key or "").startswith(name)), wanted)
    if data is None or wanted is None:
        return data or LIBERO_SPEC
    return data if wanted.gripper == "none" else replace(data, gripper=wanted.gripper)


def read_critic(folder: Path) -> dict[str, Tensor]:
    """The critic's tensors, from a file of their own."""
    tensors = read_safetensors(folder / VALUE_HEAD_FILE)
    return {name.removeprefix(_VALUE_PREFIX): x for name, x in tensors.items()}


def write_critic(folder: Path, value_head: ValueHead) -> None:
    """Write the file of `read_critic`."""
    tensors = {_VALUE_PREFIX + name: x for name, x in value_head.state_dict().items()}
    write_safetensors(folder / VALUE_HEAD_FILE, tensors)


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
