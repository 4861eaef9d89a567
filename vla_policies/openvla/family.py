"""Shared by OpenVLA and OpenVLA-OFT: network, processor, critic, loading and saving."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from vla_gym.errors import BadValue
from vla_policies.actions.sampling import ActionCodec
from vla_policies.backbone import Backbone, Header
from vla_policies.checkpoint_io.folder import ADAPTER_SETTINGS, OWN_KEY, write_json
from vla_policies.checkpoint_io.json_records import from_json, to_json
from vla_policies.checkpoint_io.weights import check_tensors, fill
from vla_policies.conventions import Conventions
from vla_policies.lora_backbone import LoraBackbone
from vla_policies.model_folder import FolderFacts, ModelFolder, Request
from vla_policies.modules.feature_cache import GIB, FeatureCache
from vla_policies.modules.heads import ValueHead
from vla_policies.modules.lora_config import LoraSettings
from vla_policies.modules.quantization import check_installed, packed
from vla_policies.openvla import checkpoint
from vla_policies.openvla.config import OpenVLAConfig, Settings, check_options, fresh_config, stored_dtype
from vla_policies.openvla.network import LANGUAGE_TARGETS, LORA_TARGETS, PrismaticNetwork, initialise
from vla_policies.openvla.processor import OpenVLAProcessor
from vla_policies.processing.statistics import STATISTICS_FILE, read_statistics
from vla_policies.types import PolicyInputs


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
        check_options(request.options, cls.family)
        found, conventions, sampling = checkpoint.resolve(model, request, cls.base_settings, cls.makers_settings)
        return Header(cls.family, conventions, sampling, to_json(found))

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

    def config_json(self) -> dict[str, Any]:
        return to_json(self.config)

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
        (tensors, critic), scheme = checkpoint.read_weights(folder), self.config.settings.quantization
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
        own_settings = checkpoint.own_settings(self.family, saved, self.conventions, config["sampling"])
        checkpoint.save_folder(folder, saved, self.network, self.value_head, own_settings)
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
        if (folder / checkpoint.VALUE_HEAD_FILE).is_file():
            fill(self.value_head, checkpoint.read_critic(folder), folder, lambda _: torch.float32)
        self.load_heads([folder], needed=False)

    def save_beside(self, folder: Path, config: Mapping[str, Any]) -> None:
        checkpoint.write_critic(folder, self.value_head)
        self.save_heads(folder)
        own_settings = checkpoint.own_settings(self.family, self.config, self.conventions, config["sampling"])
        write_json(folder / ADAPTER_SETTINGS, {OWN_KEY: own_settings})
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

    def _set(self, **settings: Any) -> None:
        self.config = replace(self.config, settings=replace(self.config.settings, **settings))
