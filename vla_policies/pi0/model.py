"""The families `pi0` and `pi05`: PaliGemma encodes images and text once; the action expert denoises given their keys
and values.

Letters as in `modules.streams`; W is the VLM's width, E the expert's, H predicted actions, M cameras.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import SiglipVisionConfig, SiglipVisionModel

from vla_gym.errors import BadValue
from vla_policies.actions.sampling import Sampling
from vla_policies.backbone import Header
from vla_policies.checkpoint_io.folder import CONFIG_FILE, weight_files, write_json, write_text
from vla_policies.checkpoint_io.json_records import as_annotated, to_json
from vla_policies.checkpoint_io.weights import fill, read_tensors, write_tensors
from vla_policies.conventions import CAMERA_KEYS, Conventions
from vla_policies.flow_backbone import Denoised
from vla_policies.model_folder import FolderFacts, ModelFolder, Request
from vla_policies.modules.heads import FlowHead
from vla_policies.modules.streams import ActionExpert, GemmaLayer, Prefix, make_norm, run_prefix, suffix_mask
from vla_policies.pi0.checkpoint import (
    IMPLIED,
    has_time_mlp,
    implied_config,
    maker_of,
    network_names,
    read_config,
    statistics_of,
)
from vla_policies.pi0.config import FULL, NetworkShape, Pi0Config, tiny_config
from vla_policies.pi0.processor import TOKENIZER_FILE, Pi0Processor
from vla_policies.types import PolicyInputs
from vla_policies.vlm_flow.backbone import Context, VLMFlowBackbone
from vla_policies.vlm_flow.config import VLMFlowConfig
from vla_policies.vlm_flow.lerobot import (
    camera_names,
    folder_conventions,
    is_statistic,
    known_cameras,
    rename_map,
)

NETWORK = "network."
"""Prefix of the network's tensors in folders of this project, and in no published one."""


class VisionLanguageModel(nn.Module):
    """PaliGemma without its language head: SigLIP, a linear projector, Gemma with full attention."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape.vlm
        self.recompute = False
        self.vision_tower = SiglipVisionModel(SiglipVisionConfig(**asdict(shape.vision), vision_use_head=False))
        self.projector = nn.Linear(shape.vision.hidden_size, shape.vlm.width)
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.vlm.width)
        self.layers = nn.ModuleList(GemmaLayer(shape.vlm, adaptive=False) for _ in range(shape.vlm.depth))
        self.norm = make_norm(shape.vlm.width, adaptive=False)

    def image_tokens(self, pixels_BCHW: Tensor) -> Tensor:
        """Images in [-1, 1] to tokens `[B, patches, W]`, unscaled."""
        pixels_BCHW = pixels_BCHW.to(self.projector.weight.dtype)
        return self.projector(self.vision_tower(pixel_values=pixels_BCHW).last_hidden_state)

    def embed(
        self, pixels_BMCHW: Tensor, camera_mask_BM: Tensor | None, text_BL: Tensor, text_mask_BL: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tokens of all cameras, then of the text, `[B, L, W]`, and which are real, bool `[B, L]`.

        `camera_mask_BM` is False where a camera is absent; None means that all are there.
        """
        num_samples, num_cameras = pixels_BMCHW.shape[:2]
        images = self.image_tokens(pixels_BMCHW.flatten(0, 1)).unflatten(0, (num_samples, num_cameras))
        patches = images.shape[2]
        if camera_mask_BM is None:
            camera_mask_BM = text_mask_BL.new_ones(num_samples, num_cameras)
        words = self.embed_tokens(text_BL) * math.sqrt(self.shape.width)
        mask_BL = torch.cat([camera_mask_BM.repeat_interleave(patches, dim=1), text_mask_BL], dim=1)
        return torch.cat([images.flatten(1, 2), words], dim=1), mask_BL

    def forward(self, x_BLW: Tensor, mask_BL: Tensor, *, with_hidden: bool) -> Prefix:
        return run_prefix(
            self.layers,
            self.norm,
            x_BLW,
            mask_BL,
            head_dim=self.shape.head_dim,
            recompute=self.recompute,
            with_hidden=with_hidden,
        )


class Pi0Network(FlowHead):
    """Velocity of noisy actions, given a prefix; pi0 and, with `adaptive`, pi0.5."""

    def __init__(self, shape: NetworkShape, *, adaptive: bool) -> None:
        periods = (shape.min_period, shape.max_period)
        super().__init__(shape.expert, shape.action_width, adaptive=adaptive, periods=periods)
        self.vlm = VisionLanguageModel(shape)
        self.state_proj = None if adaptive else nn.Linear(shape.state_width, shape.expert.width)

    def embed_suffix(self, x_BHD: Tensor, time_B: Tensor, state_BS: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The expert's input tokens `[B, Q, E]`, pi0's state first, and pi0.5's condition `[B, E]`."""
        action_BHE, condition_BE = self.embed_actions(x_BHD, time_B)
        if self.state_proj is None:
            return action_BHE, condition_BE
        assert state_BS is not None
        return torch.cat([self.state_proj(state_BS)[:, None], action_BHE], dim=1), condition_BE

    def hidden(self, prefix: Prefix, x_BHD: Tensor, time_B: Tensor, state_BS: Tensor | None) -> Tensor:
        """All tokens of the expert after the last norm, `[B, Q, E]`: for pi0 the first is the state's."""
        x_BQE, condition_BE = self.embed_suffix(x_BHD, time_B, state_BS)
        start_B1 = prefix.mask_BL.long().sum(dim=1, keepdim=True)
        position_BQ = start_B1 + torch.arange(x_BQE.shape[1], device=x_BQE.device)
        mask = suffix_mask(prefix.mask_BL, x_BHD.shape[1], state_token=self.state_proj is not None)
        return self.expert(x_BQE, prefix.layers, position_BQ, mask, condition_BE)


class Pi0Backbone(VLMFlowBackbone):
    """pi0: PaliGemma encodes, an action expert denoises; the state is one of the expert's tokens."""

    family: ClassVar[str] = "pi0"
    published: ClassVar[str | None] = "lerobot/pi0_base"
    adaptive_norm: ClassVar[bool] = False
    """Whether time enters through the expert's norms, and there is no state token."""
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
        self.set_recompute(bool(self.learning.recompute_activations))
        self._folder: Path | None = None
        reads = not self.adaptive_norm or config.preprocessing.prompt_state != "none"
        if reads and not conventions.state_dim:
            raise BadValue(f"'{self.family}' reads the robot's state; the observation has none, or use_state is false")

    def _build_network(self) -> None:
        self.network = Pi0Network(self.config.network, adaptive=self.adaptive_norm)

    @property
    def vlm(self) -> VisionLanguageModel:
        return self.network.vlm

    @property
    def expert(self) -> ActionExpert:
        return self.network.expert

    # Building, loading --------------------------------------------------------------------------------

    @classmethod
    def config_of_size(cls, size: str, action_dim: int) -> Pi0Config:
        return FULL[cls.family] if size == "full" else tiny_config(cls.family)

    @classmethod
    def recognises(cls, model: ModelFolder) -> bool:
        return model.config.get("type") == cls.family or has_time_mlp(model.folder) == cls.adaptive_norm

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
        options = dict(request.options)
        cameras = as_annotated(tuple[str, ...] | None, options.pop("cameras", None), "cameras of backbone_kwargs")
        horizon = as_annotated(int | None, options.pop("horizon", None), "horizon of backbone_kwargs")
        robot = as_annotated(bool, options.pop("use_statistics", True), "use_statistics of backbone_kwargs")
        own = read_config(model.folder, model.config, cls.family, request.unnorm_key, horizon, robot=robot)
        own = own.with_options(options)
        reads = not cls.adaptive_norm or own.preprocessing.prompt_state != "none"
        known = known_cameras(camera_names(model.config), rename_map(model.folder))
        known = known if len(known) == len(CAMERA_KEYS) else CAMERA_KEYS
        conventions = folder_conventions(model.config, own, request, cameras, known, reads_state=reads)
        return Header(cls.family, conventions, Sampling(), to_json(own))

    def load(self, folder: Path, beside: Sequence[Path] = ()) -> None:
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
        prefix, mean_BW = self.prefix_of(inputs)
        return Context(prefix, inputs.state_BS, mean_BW)

    def denoise(self, context: Context, x_BHD: Tensor, time_B: Tensor) -> Denoised:
        hidden_BQE = self.network.hidden(context.memory, x_BHD, time_B, context.state_BS)
        velocity_BHD = self.network.velocity(hidden_BQE, self.horizon)
        return Denoised(velocity_BHD.float(), hidden_BQE[:, -self.horizon :].float())

    # Inside -------------------------------------------------------------------------------------------

    def _build_processor(self) -> Pi0Processor:
        return Pi0Processor(self.conventions, self.config.preprocessing, self.config.network, self._folder)

    def _dtype_of(self, name: str) -> torch.dtype:
        return self._vlm_dtype if name.startswith(NETWORK + "vlm.") else torch.float32


class Pi05Backbone(Pi0Backbone):
    """pi0.5: the state is part of the text, time conditions the expert's norms."""

    family: ClassVar[str] = "pi05"
    published: ClassVar[str | None] = "lerobot/pi05_base"
    adaptive_norm: ClassVar[bool] = True
