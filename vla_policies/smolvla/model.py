"""The family `smolvla`: network, processor and heads, behind the interface of `VLMFlowBackbone`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from vla_gym.errors import BadValue, unknown_name
from vla_policies.actions.sampling import Sampling
from vla_policies.backbone import Header
from vla_policies.checkpoint_io.folder import ADAPTER_SETTINGS, OWN_KEY, read_config, weight_files, write_json
from vla_policies.checkpoint_io.json_records import as_annotated, from_json, to_json
from vla_policies.checkpoint_io.weights import check_tensors, fill, read_safetensors, write_safetensors
from vla_policies.conventions import CAMERA_KEYS, Conventions
from vla_policies.flow_backbone import Denoised
from vla_policies.lora_backbone import LoraBackbone, merged_state
from vla_policies.model_folder import FolderFacts, ModelFolder, Request
from vla_policies.modules.lora_config import LoraSettings
from vla_policies.smolvla import checkpoint
from vla_policies.smolvla.config import VLM_NAME, Learning, NetworkShape, SmolVLAConfig, tiny_config
from vla_policies.smolvla.network import Expert, SmolVLANetwork, VisionLanguageModel, initialise
from vla_policies.smolvla.processor import SmolVLAProcessor, folder_tokenizer
from vla_policies.types import PolicyInputs
from vla_policies.vlm_flow.backbone import Context, VLMFlowBackbone
from vla_policies.vlm_flow.config import WORDS, VLMFlowConfig
from vla_policies.vlm_flow.lerobot import DATA_SET, camera_names, folder_conventions, known_cameras, rename_map
from vla_policies.vlm_flow.processor import TextTokenizer, words_encoder

HEADS_FILE = "heads.safetensors"
"""The critic and Flow-Noise's network, beside the published weights."""
LORA_TARGETS = (
    r"model\.vlm_with_expert\.lm_expert\.layers\.[0-9]+\.self_attn\.[qv]_proj|"
    r"model\.(state_proj|action_in_proj|action_out_proj|action_time_mlp_in|action_time_mlp_out)"
)
"""Layers that get an adapter where nothing is said, as in lerobot: the expert's queries and values, and the
projections of state, actions and time."""


@dataclass(frozen=True, kw_only=True)
class OwnSettings:
    """Settings beyond lerobot's layout with which a folder of this project opens the same way again."""

    conventions: Conventions
    sampling: Sampling
    model: SmolVLAConfig


class SmolVLABackbone(LoraBackbone, VLMFlowBackbone):
    """SmolVLA: a cut SmolVLM encodes images, text and state, a causal expert denoises.

    As the expert is causal, only the actions that are executed are denoised.
    """

    family: ClassVar[str] = "smolvla"
    published: ClassVar[str | None] = "lerobot/smolvla_base"
    lora_targets: ClassVar[tuple[str, ...] | str] = LORA_TARGETS
    config_class: ClassVar[type[VLMFlowConfig]] = SmolVLAConfig
    config: SmolVLAConfig
    default_conventions: ClassVar[Conventions] = Conventions(
        cameras=CAMERA_KEYS, image_size=512, state_dim=8, chunk=10, action_dim=7
    )

    def __init__(self, conventions: Conventions, config: SmolVLAConfig, *, empty: bool = False) -> None:
        super().__init__(conventions, config, empty=empty)
        self.horizon = conventions.chunk
        if not empty:
            for name, parameter in self.policy.named_parameters():
                parameter.data = parameter.data.to(self._dtype_of(name))
            self.attach_lora()

    def _build_network(self) -> None:
        self.policy = nn.ModuleDict({"model": SmolVLANetwork(self.config.network)})

    @property
    def network(self) -> SmolVLANetwork:
        """The network; in `policy` its tensors have their published names."""
        return cast(SmolVLANetwork, self.policy["model"])

    @property
    def vlm(self) -> VisionLanguageModel:
        return self.network.vlm

    @property
    def expert(self) -> Expert:
        return self.network.expert

    # Building, loading --------------------------------------------------------------------------------

    @classmethod
    def config_of_size(cls, size: str, action_dim: int) -> SmolVLAConfig:
        tiny = tiny_config(action_dim)
        full = replace(tiny, network=NetworkShape(), learning=Learning()).with_tokenizer(VLM_NAME)
        return full if size == "full" else tiny

    @classmethod
    def fresh(cls, conventions: Conventions, options: Mapping[str, Any]) -> Self:
        backbone = super().fresh(conventions, options)
        initialise(backbone.network)
        return backbone

    @classmethod
    def facts(cls, model: ModelFolder) -> FolderFacts:
        return FolderFacts(maker="lerobot", data_sets=list(checkpoint.statistics_of(model.folder, model.beside)))

    @classmethod
    def read_official(cls, model: ModelFolder, request: Request) -> Header:
        """Header of lerobot's folder, or of one that this project wrote in its layout; cameras, chunk and dims are the
        environment's where one is given. An adapter that lerobot trained brings its own settings and statistics."""
        folder = model.folder
        source = checkpoint.settings_folder(folder, model.beside)
        own = model.config.get(OWN_KEY)
        if own is None and (folder / ADAPTER_SETTINGS).is_file():
            own = read_config(folder, ADAPTER_SETTINGS)[OWN_KEY]
        if own is not None and source == folder:
            return cls._own_header(folder, own, request)
        config = model.config if source == folder else read_config(source)
        options = dict(request.options)
        cameras = as_annotated(tuple[str, ...] | None, options.pop("cameras", None), "cameras of backbone_kwargs")
        found = checkpoint.read_config(folder, config, request.unnorm_key, model.beside).with_options(options)
        found = replace(found, rename_map=rename_map(source) if cameras is None else {})
        known = known_cameras(camera_names(found.published), found.rename_map) or CAMERA_KEYS[:1]
        conventions = folder_conventions(found.published, found, request, cameras, known)
        found = checkpoint.with_absent_cameras(found, len(conventions.cameras))
        return Header(cls.family, conventions, Sampling(), to_json(found))

    @classmethod
    def _own_header(cls, folder: Path, own: Mapping[str, Any], request: Request) -> Header:
        if request.unnorm_key not in (None, DATA_SET):
            raise unknown_name(f"unnorm_key in '{folder}'", str(request.unnorm_key), (DATA_SET,))
        saved = from_json(OwnSettings, own, f"{ADAPTER_SETTINGS} of '{folder}'")
        found, conventions = saved.model, saved.conventions
        if found.preprocessing.tokenizer != WORDS:
            vlm = str(found.published.get("vlm_model_name", checkpoint.VLM_FOLDER))
            found = found.with_tokenizer(str(checkpoint.find_vlm(folder, vlm)[1]))
        if request.wanted is not None:
            conventions = replace(conventions, chunk=request.wanted.chunk)
        return Header(cls.family, conventions, saved.sampling, to_json(found.with_options(request.options)))

    def load(self, folder: Path, beside: Sequence[Path] = ()) -> None:
        tensors = checkpoint.read_weights(folder, self.policy.state_dict())
        fill(self.policy, tensors, weight_files(folder)[0], self._dtype_of)
        self.load_beside(folder)
        self.attach_lora()
        self._loaded(folder)

    def save(self, folder: Path, config: Mapping[str, Any]) -> None:
        checkpoint.write_folder(folder, self.config, self.conventions, merged_state(self.policy))
        self.save_beside(folder, config)

    def _heads(self) -> dict[str, Tensor]:
        names = ("value_head.", "noise_head.")
        return {name: tensor for name, tensor in self.state_dict().items() if name.startswith(names)}

    def load_beside(self, folder: Path) -> None:
        path, heads = folder / HEADS_FILE, self._heads()
        if path.is_file():
            # What one scheme trained may be opened with another: only Flow-Noise has a network of noise.
            stored = read_safetensors(path, skip=lambda name: name.startswith("noise_head.") and name not in heads)
            new = {name: x for name, x in heads.items() if name.startswith("noise_head.")}
            check_tensors(path, {**new, **stored}, heads)
            self.load_state_dict(stored, strict=False)

    def save_beside(self, folder: Path, config: Mapping[str, Any]) -> None:
        write_safetensors(folder / HEADS_FILE, self._heads())
        saved = replace(self.config, learning=replace(self.config.learning, lora=None))
        if saved.preprocessing.tokenizer != WORDS:
            saved = saved.with_tokenizer(checkpoint.VLM_FOLDER)  # the folder's own
        own = {"conventions": to_json(self.conventions), "sampling": config["sampling"], "model": to_json(saved)}
        write_json(folder / ADAPTER_SETTINGS, {OWN_KEY: own})

    # Adapters -----------------------------------------------------------------------------------------

    @property
    def adapted(self) -> nn.Module:
        return self.policy

    @property
    def lora(self) -> LoraSettings | None:
        return self.config.learning.lora

    def set_lora(self, settings: LoraSettings | None) -> None:
        self.config = replace(self.config, learning=replace(self.config.learning, lora=settings))

    # Deciding -----------------------------------------------------------------------------------------

    def encode(self, inputs: PolicyInputs) -> Context:
        assert inputs.state_BS is not None
        (prefix, mean_BW), reads_state = self.prefix_of(inputs), self.learning.value_feature == "state"
        whole, state_BW = self.network.read_state(prefix, inputs.state_BS, with_hidden=reads_state)
        return Context(self.network.expert.memory(whole), None, state_BW if reads_state else mean_BW)

    def denoise(self, context: Context, x_BHD: Tensor, time_B: Tensor) -> Denoised:
        hidden_BHE = self.network.hidden(context.memory, x_BHD, time_B)
        return Denoised(self.network.velocity(hidden_BHE, x_BHD.shape[1]).float(), hidden_BHE.float())

    # Inside -------------------------------------------------------------------------------------------

    def _build_processor(self) -> SmolVLAProcessor:
        preprocessing, shape = self.config.preprocessing, self.config.network
        if preprocessing.tokenizer == WORDS:
            tokenizer = TextTokenizer(words_encoder(1, shape.vocab_size), preprocessing.max_tokens)
        else:
            folder = checkpoint.tokenizer_folder(preprocessing.tokenizer)
            tokenizer = folder_tokenizer(folder, preprocessing.max_tokens)
        return SmolVLAProcessor(self.conventions, preprocessing, shape, tokenizer)

    def finish(self) -> None:
        learning = self.learning
        if not self.has_adapter:
            self._freeze()
        self.set_recompute(bool(learning.recompute_activations))
        if learning.cache_features and not self._prefix_is_frozen:
            raise BadValue("cache_features is for a frozen VLM; adapt the expert alone, or set cache_features: 0")
        self._reset_cache()

    def _freeze(self) -> None:
        network, learning = self.network, self.config.learning
        network.requires_grad_(True)
        network.vlm_with_expert["vlm"]["lm_head"].requires_grad_(False)  # type: ignore[index]
        network.state_proj.requires_grad_(learning.train_state_proj)
        if learning.train_expert_only:
            network.vlm.requires_grad_(False)
            return
        network.vlm.vision_model.requires_grad_(not learning.freeze_vision_encoder)
        if learning.value_feature == "expert" or learning.detach_value:
            # Of the last layer, the expert reads keys and values alone.
            text = network.vlm.text_model
            last: Any = text.layers[-1]
            for part in (
                last.self_attn.q_proj,
                last.self_attn.o_proj,
                last.mlp,
                last.post_attention_layernorm,
                text.norm,
            ):
                part.requires_grad_(False)

    @property
    def _prefix_is_frozen(self) -> bool:
        return not any(parameter.requires_grad for parameter in self.vlm.parameters())

    def _dtype_of(self, name: str) -> torch.dtype:
        return self._vlm_dtype if name.startswith("model.vlm_with_expert.vlm.") else torch.float32
