"""The families `pi0` and `pi05`: network, processor and heads, behind the interface of `FlowBackbone`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from vla_gym.errors import BadValue
from vla_policies.actions.sampling import Sampling
from vla_policies.backbone import Header
from vla_policies.checkpoint_io.folder import CONFIG_FILE, weight_files, write_json, write_text
from vla_policies.checkpoint_io.json_records import as_annotated, to_json
from vla_policies.checkpoint_io.weights import fill, read_tensors, write_tensors
from vla_policies.conventions import CAMERA_KEYS, Conventions
from vla_policies.flow_backbone import Denoised
from vla_policies.model_folder import FolderFacts, ModelFolder, Request
from vla_policies.pi0.checkpoint import (
    IMPLIED,
    has_time_mlp,
    implied_config,
    maker_of,
    network_names,
    read_config,
    statistics_of,
)
from vla_policies.pi0.config import TRAITS, Pi0Config, full_config, tiny_config
from vla_policies.pi0.network import Pi0Network, VisionLanguageModel
from vla_policies.pi0.processor import TOKENIZER_FILE, Pi0Processor
from vla_policies.types import PolicyInputs
from vla_policies.vlm_flow.backbone import Context, VLMFlowBackbone
from vla_policies.vlm_flow.config import VLMFlowConfig
from vla_policies.vlm_flow.lerobot import folder_conventions, is_statistic

NETWORK = "network."
"""Prefix of the network's tensors in folders of this project, and in no published one."""


class Pi0Backbone(VLMFlowBackbone):
    """pi0: PaliGemma encodes, an action expert denoises; the state is one of the expert's tokens."""

    family: ClassVar[str] = "pi0"
    published: ClassVar[str | None] = "lerobot/pi0_base"
    config_class: ClassVar[type[VLMFlowConfig]] = Pi0Config
    config: Pi0Config
    default_conventions: ClassVar[Conventions] = Conventions(
        cameras=CAMERA_KEYS, image_size=224, state_dim=8, chunk=10, action_dim=7
    )

    def __init__(self, conventions: Conventions, config: Pi0Config, *, empty: bool = False) -> None:
        super().__init__(conventions, config, empty=empty)
        if self.learning.train_expert_only:
            self.vlm.requires_grad_(False)
        if not empty:
            self.vlm.to(self._vlm_dtype)
        self.vlm.recompute = self.network.expert.recompute = self.learning.recompute_activations
        self._folder: Path | None = None
        self._check_state()

    def _build_network(self) -> None:
        self.network = Pi0Network(self.config.network, adaptive=TRAITS[self.family].adaptive_norm)

    @property
    def vlm(self) -> VisionLanguageModel:
        return self.network.vlm

    # Building, loading --------------------------------------------------------------------------------

    @classmethod
    def config_of_size(cls, size: str, action_dim: int) -> Pi0Config:
        return full_config(cls.family) if size == "full" else tiny_config(cls.family)

    @classmethod
    def recognises(cls, model: ModelFolder) -> bool:
        return model.config.get("type") == cls.family or has_time_mlp(model.folder) == TRAITS[cls.family].adaptive_norm

    @classmethod
    def facts(cls, model: ModelFolder) -> FolderFacts:
        maker = maker_of(model)
        # RLinf's program reads no `config.json`.
        stated = ("horizon",) if IMPLIED not in model.config and maker != "rlinf" else ()
        data_sets = list(statistics_of(model.folder, model.config))
        return FolderFacts(maker=maker, stated_options=stated, data_sets=data_sets)

    @classmethod
    def implied_config(cls, folder: Path) -> Mapping[str, Any] | None:
        return implied_config(folder)

    @classmethod
    def read_official(cls, model: ModelFolder, request: Request) -> Header:
        """Header of lerobot's or openpi's folder; cameras, chunk and dims are the environment's where one is given."""
        options = dict(request.options)
        cameras = as_annotated(tuple[str, ...] | None, options.pop("cameras", None), "cameras of backbone_kwargs")
        horizon = as_annotated(int | None, options.pop("horizon", None), "horizon of backbone_kwargs")
        own = read_config(model.folder, model.config, cls.family, request.unnorm_key, horizon).with_options(options)
        conventions = folder_conventions(model.config, own, request, cameras, len(CAMERA_KEYS))
        return Header(cls.family, conventions, Sampling(), to_json(own))

    def load(self, folder: Path, beside: Sequence[Path] = ()) -> None:
        """Read a folder of this project or a published one; heads that the latter lacks keep their initial weights."""
        where, tensors = weight_files(folder)[0], read_tensors(folder, skip=is_statistic)
        # Of a published folder any head may be absent, of this project's Flow-Noise's alone.
        may_be_new: tuple[str, ...] = ("noise_head.",)
        if not any(name.startswith(NETWORK) for name in tensors):
            may_be_new = ("noise_head.", "value_head.")
            tensors = {
                name if name.startswith("value_head.") else NETWORK + name: tensor
                for name, tensor in network_names(tensors, where).items()
            }
        absent = tuple(head for head in may_be_new if not any(name.startswith(head) for name in tensors))
        first = {name: tensor for name, tensor in self.state_dict().items() if name.startswith(absent)}
        fill(self, {**first, **tensors}, where, self._dtype_of)
        # In no checkpoint, and on the meta device after an `empty` start.
        embeddings = self.vlm.vision_tower.embeddings
        if embeddings.position_ids.is_meta:
            embeddings.position_ids = torch.arange(embeddings.num_positions)[None]
        self._folder = folder
        self._loaded(folder)

    def save(self, folder: Path, config: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder, self.state_dict())
        if self._folder is not None and (self._folder / TOKENIZER_FILE).is_file():
            write_text(folder / TOKENIZER_FILE, (self._folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
        write_json(folder / CONFIG_FILE, config)

    # Deciding -----------------------------------------------------------------------------------------

    def encode(self, inputs: PolicyInputs) -> Context:
        prefix = self.prefix_of(inputs)
        return Context(prefix, inputs.state_BS, prefix.mean_BW)

    def denoise(self, context: Context, x_BHD: Tensor, time_B: Tensor) -> Denoised:
        hidden_BQE = self.network.hidden(context.memory, x_BHD, time_B, context.state_BS)
        velocity_BHD = self.network.velocity(hidden_BQE, self.horizon)
        return Denoised(velocity_BHD.float(), hidden_BQE[:, -self.horizon :].float())

    # Inside -------------------------------------------------------------------------------------------

    def _build_processor(self) -> Pi0Processor:
        return Pi0Processor(self.conventions, self.config.preprocessing, self.config.network, self._folder)

    def _dtype_of(self, name: str) -> torch.dtype:
        return self._vlm_dtype if name.startswith(NETWORK + "vlm.") else torch.float32

    def _check_state(self) -> None:
        reads = not TRAITS[self.family].adaptive_norm or self.config.preprocessing.prompt_state != "none"
        if reads and not self.conventions.state_dim:
            raise BadValue(f"'{self.family}' reads the robot's state; the observation has none, or use_state is false")


class Pi05Backbone(Pi0Backbone):
    """pi0.5: the state is part of the text, time conditions the expert's norms."""

    family: ClassVar[str] = "pi05"
    published: ClassVar[str | None] = "lerobot/pi05_base"
