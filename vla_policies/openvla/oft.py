"""OpenVLA-OFT: the whole chunk in one pass, every token attending to every other."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_gym.errors import BadValue
from vla_gym.reading import read_bytes
from vla_policies.actions.noise import TORCH_NOISE, Noise
from vla_policies.actions.sampling import ActionTokenDistribution, Sampling
from vla_policies.backbone import BackboneOutput, Draws, Header, TokenBackbone
from vla_policies.checkpoint_io.folder import OWN_KEY, one_file
from vla_policies.checkpoint_io.weights import fill, read_pt, read_safetensors, write_safetensors
from vla_policies.conventions import CAMERA_KEYS, Conventions
from vla_policies.devices import upload
from vla_policies.model_folder import FolderFacts, ModelFolder, Request
from vla_policies.openvla.config import OpenVLAConfig, Settings
from vla_policies.openvla.family import OpenVLAFamily
from vla_policies.openvla.llama import Segment, run_layers
from vla_policies.openvla.network import MLP
from vla_policies.processing.statistics import read_statistics
from vla_policies.types import ActionSample, PolicyInputs, is_padded

_log = logging.getLogger(__name__)

STOP = 2
"""Id of `</s>`."""
BASE = Settings(chunk=8, width_epsilon=1e-8)
"""LIBERO's row: chunks of 8, quantiles."""

HEAD_FILES, PROJECTOR_FILES = "action_head--*.pt", "proprio_projector--*.pt"
"""Files of the makers' own heads."""
FILM_FILES = "vision_backbone--*.pt"
"""Image towers that read the instruction (FiLM), in place of those among the weights."""
OFT_NAME = r"(?i)openvla[-_]?(7b[-_])?oft"
"""In the names of published checkpoints: moojink/openvla-7b-oft-finetuned-*, Haozhan72/Openvla-oft-SFT-*,
RLinf/RLinf-OpenVLAOFT-*."""
OPENVLA_NAME = r"(?i)^openvla-(7b|v01)|^RLinf-OpenVLA-"
"""In the names of those that decode one token after the other: openvla/openvla-7b and openvla/openvla-v01-7b, their
fine-tunes, gen-robot/openvla-7b-rlvla-warmup, RLinf/RLinf-OpenVLA-*."""
RLINF_NAME = r"(?i)^RLinf-OpenVLAOFT-(?!RoboTwin)"
"""In the names of those that RLinf trained in its own program (those of RoboTwin in that of OpenVLA-OFT's makers)."""
MODELLING_CODE, OFT_CODE = "modeling_prismatic.py", "NUM_ACTIONS_CHUNK"
_MOST_CODE = 2**20
"""The makers' code that a folder may bring (read as text, never run), and a name that only OpenVLA-OFT's has."""

PLATFORMS: dict[str, dict[str, Any]] = {
    "aloha": {"chunk": 25, "bounds": "min_max"},
    "bridge": {"chunk": 5},
}
"""Beginning of a data set's name -> differences from `BASE` (openvla-oft 213c5ff8, `constants.py`)."""
RLINF: dict[str, Any] = {"chunk": 8, "stop_token": False, "camera_resize": "bicubic", "center_crop": False}
"""How RLinf's program reads its checkpoints, of any data set (RLinf a3816b59, `implement_version: rlinf`)."""


class OpenVLAOFTBackbone(OpenVLAFamily, TokenBackbone):
    """K x A empty slots after the prompt; the logits of a slot come from the position before it. A counts all numbers
    of an action, of which `action_dims` may choose some.

    With `head: l1` the slots' hidden states go through the regression head of official fine-tunes instead, which
    acts and is evaluated, but has no distribution to train.
    """

    family: ClassVar[str] = "openvla-oft"
    published: ClassVar[str | None] = "Haozhan72/Openvla-oft-SFT-libero10-traj1"
    default_conventions: ClassVar[Conventions] = Conventions(
        cameras=("image",), image_size=224, state_dim=0, chunk=8, action_dim=7
    )
    base_settings: ClassVar[Settings] = BASE
    takes_any_chunk: ClassVar[bool] = True
    length_hint: ClassVar[str] = "; backbone_kwargs action_dims chooses among a checkpoint's numbers, e.g. [0, 1, 2, 6]"
    program_options: ClassVar[tuple[str, ...]] = ("stop_token", "camera_resize", "center_crop")

    def __init__(self, conventions: Conventions, config: OpenVLAConfig, where: str) -> None:
        super().__init__(conventions, config, where)
        width, settings = self.network.width, config.settings
        self.numbers = config.numbers_of(conventions.action_dim)
        self.proprio = MLP(conventions.state_dim, width, width) if settings.use_state else None
        self.regression = RegressionHead(width, self.numbers) if settings.head == "l1" else None

    @classmethod
    def recognises(cls, model: ModelFolder) -> bool | None:
        if OWN_KEY in model.config:
            return bool(model.config[OWN_KEY].get("family") == cls.family)
        if _place_of(HEAD_FILES, model.places) or _place_of(PROJECTOR_FILES, model.places):
            return True
        # Fine-tunes whose actions are tokens have OpenVLA's files, config and model_type, and no others.
        if any(re.search(OFT_NAME, name) for name in model.names):
            return True
        code = model.folder / MODELLING_CODE
        if code.is_file():
            return OFT_CODE in read_bytes(code, most=_MOST_CODE).decode(errors="replace")
        return False if any(re.search(OPENVLA_NAME, name) for name in model.names) else None

    @classmethod
    def facts(cls, model: ModelFolder) -> FolderFacts:
        facts = super().facts(model)
        if OWN_KEY in model.config:
            return facts
        options: dict[str, Any] = {"head": "l1"} if _place_of(HEAD_FILES, model.places) else {}
        if _place_of(PROJECTOR_FILES, model.places):
            options["use_state"] = True
            trained_on = read_statistics(model.config, model.places)[1]
            if trained_on and all(key.startswith("libero") for key in trained_on):
                # Official LIBERO fine-tunes with a state projector have both (openvla-oft 213c5ff8, LIBERO.md).
                options["cameras"] = list(CAMERA_KEYS)
        return replace(facts, trained_options=options)

    @classmethod
    def read_official(cls, model: ModelFolder, request: Request) -> Header:
        header = super().read_official(model, request)
        if OWN_KEY not in model.config:
            if film := _place_of(FILM_FILES, model.places):
                raise BadValue(
                    f"'{film}' has image towers with FiLM ({FILM_FILES}), which are not read here; open another"
                )
            _warn_of_unread_heads(model.places, header.model["settings"], request.options)
        return header

    @classmethod
    def draws(cls, model: Mapping[str, Any]) -> Draws:
        tokens = model.get("settings", model).get("head", Settings.head) == "tokens"
        return Draws(sampled=tokens, tokens=tokens)

    @classmethod
    def makers_settings(cls, model: ModelFolder, unnorm_key: str | None) -> dict[str, Any]:
        if any(re.search(RLINF_NAME, name) for name in model.names):
            return RLINF
        for prefix, settings in PLATFORMS.items():
            if unnorm_key is not None and unnorm_key.startswith(prefix):
                return settings
        return {}

    def load_heads(self, folders: Sequence[Path], *, needed: bool = True) -> None:
        for name, head in self._heads().items():
            if path := next(filter(None, (_head_file(folder, name) for folder in folders)), None):
                tensors = read_safetensors(path) if path.suffix == ".safetensors" else read_pt(path)
                fill(head.to(self.weight_dtype), tensors, path, lambda _: self.weight_dtype)
            elif needed:
                raise BadValue(
                    f"checkpoint folder '{folders[0]}' lacks {name}--<step>_checkpoint.pt, which its settings need"
                )

    def save_heads(self, folder: Path) -> None:
        for name, head in self._heads().items():
            write_safetensors(folder / f"{name}.safetensors", head.state_dict())

    def _heads(self) -> dict[str, nn.Module]:
        heads = {"proprio_projector": self.proprio, "action_head": self.regression}
        return {name: head for name, head in heads.items() if head is not None}

    def forward(self, inputs: PolicyInputs) -> BackboneOutput:
        hidden_BSD = self.slot_hidden(inputs)
        scored_BSD, chosen = hidden_BSD, self.config.settings.action_dims
        if chosen is not None:
            scored_BSD = hidden_BSD.unflatten(1, (-1, self.numbers))[:, :, list(chosen)].flatten(1, 2)
        logits_BSV = self.network.action_logits(scored_BSD)
        step_value_BU: Tensor = self.value_head(hidden_BSD[:, 0])
        return BackboneOutput(
            logits_BSV.unflatten(1, (self.conventions.chunk, self.conventions.action_dim)),
            value_B=step_value_BU[:, 0],
            value_BK=step_value_BU if self.step_values else None,
        )

    def action_selection_text(self, sampling: Sampling, *, deterministic: bool) -> str:
        if self.regression is None:
            return super().action_selection_text(sampling, deterministic=deterministic)
        return "actions of the regression head"

    def act(
        self, inputs: PolicyInputs, sampling: Sampling, *, deterministic: bool, noise: Noise = TORCH_NOISE
    ) -> ActionSample:
        if self.regression is None:
            return super().act(inputs, sampling, deterministic=deterministic, noise=noise)
        hidden_BSD = self.slot_hidden(inputs)
        number_BKA = self.regression(hidden_BSD).float()
        return ActionSample(
            action_BKA=self.processor.numbers_to_actions(number_BKA),
            logprob_BKA=torch.zeros(*number_BKA.shape[:2], self.conventions.action_dim, device=number_BKA.device),
            value_B=self.state_values(hidden_BSD[:, 0]),
        )

    def distribution_of(self, output: BackboneOutput, sampling: Sampling) -> ActionTokenDistribution:
        if self.regression is not None:
            raise BadValue(
                "the regression head has no distribution to train or score; open the checkpoint with "
                "backbone_kwargs head: tokens"
            )
        return super().distribution_of(output, sampling)

    def slot_hidden(self, inputs: PolicyInputs) -> Tensor:
        """Normed hidden states at the positions before the slots, `[B, K * A, D]`; the first is the prompt's last."""
        segment, last_B, first_slot = self.sequence(inputs)
        count = self.conventions.chunk * self.numbers - 1
        slot_S = torch.arange(first_slot, first_slot + count, device=last_B.device)
        read_BS = torch.cat([last_B[:, None], slot_S.expand(len(last_B), -1)], dim=1)
        model, run_block = self.network.language_model.model, self.network.checkpoint_fn()
        return self.network.final_norm(run_layers(model, segment, run_block, read_BS))

    def sequence(self, inputs: PolicyInputs) -> tuple[Segment, Tensor, int]:
        """The layers' input, the index of each prompt's last token `[B]`, and that of the first slot.

        BOS, patches, (state), the other words, padding, empty slots, `</s>`. Padding is masked and not counted as a
        position, so its place does not matter.
        """
        word_BLD = self.network.embed_tokens(inputs.text_BL)
        observed = [self.encode_images(inputs)]
        if self.proprio is not None:
            assert inputs.state_BS is not None
            state_BS = inputs.state_BS.to(self.proprio.fc1.weight.dtype)
            observed.append(self.proprio(state_BS)[:, None].to(word_BLD.dtype))
        num_observed = sum(part.shape[1] for part in observed)
        slots = word_BLD.new_zeros(len(word_BLD), self.conventions.chunk * self.numbers, word_BLD.shape[2])
        parts = [word_BLD[:, :1], *observed, word_BLD[:, 1:], slots]
        if self.config.settings.stop_token:
            parts.append(self.network.embed_tokens(torch.full_like(inputs.text_BL[:, :1], STOP)))
        x_BLD = torch.cat(parts, dim=1)
        real_BL = torch.ones(x_BLD.shape[:2], dtype=torch.bool, device=inputs.text_mask_BL.device)
        real_BL[:, num_observed + 1 : num_observed + inputs.text_BL.shape[1]] = inputs.text_mask_BL[:, 1:]
        # Without padding there is no mask, so that attention runs its fastest kernels.
        mask = upload(real_BL, x_BLD.device)[:, None, None] if is_padded(inputs.text_mask_BL) else None
        segment = Segment(x_BLD, upload(real_BL.cumsum(dim=1) - 1, x_BLD.device), mask)
        last_B = upload(num_observed + inputs.text_mask_BL.sum(dim=1) - 1, x_BLD.device)
        return segment, last_B, num_observed + inputs.text_BL.shape[1]


def _place_of(pattern: str, folders: Sequence[Path]) -> Path | None:
    return next((folder for folder in folders if any(folder.glob(pattern))), None)


def _head_file(folder: Path, name: str) -> Path | None:
    """The head's file in this project's layout, else in its makers'; None where the folder has neither."""
    own = folder / f"{name}.safetensors"
    return own if own.is_file() else one_file(folder, f"{name}--*.pt")


def _warn_of_unread_heads(folders: Sequence[Path], settings: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    head, projector = _place_of(HEAD_FILES, folders), _place_of(PROJECTOR_FILES, folders)
    if "head" not in options and settings["head"] != "l1" and head:
        _warn(
            f"'{head}' is opened to be trained, through action tokens; it acted through {HEAD_FILES}, which gives no "
            "distribution, and its tokens may know nothing. Say so with backbone_kwargs head: tokens; commands that "
            "only roll it out open the head"
        )
    if "use_state" not in options and not settings["use_state"] and projector:
        _warn(
            f"'{projector}' was trained with {PROJECTOR_FILES}, which is left out; give backbone_kwargs use_state: "
            "true to use it (the environment must give the state), or use_state: false to go without"
        )


@lru_cache
def _warn(text: str) -> None:
    _log.warning(text)


class ResidualBlock(nn.Module):
    """x + ReLU(Linear(LayerNorm(x)))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.ffn(x)


class ResidualMLP(nn.Module):
    """LayerNorm, Linear, ReLU, two residual blocks, LayerNorm, Linear."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(inputs)
        self.fc1 = nn.Linear(inputs, width)
        self.mlp_resnet_blocks = nn.ModuleList(ResidualBlock(width) for _ in range(2))
        self.layer_norm2 = nn.LayerNorm(width)
        self.fc2 = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., inputs]` to `[..., outputs]`."""
        x = functional.relu(self.fc1(self.layer_norm1(x)))
        for block in self.mlp_resnet_blocks:
            x = block(x)
        return self.fc2(self.layer_norm2(x))


class RegressionHead(nn.Module):
    """Hidden states of one chunk step's A slots to A numbers in about [-1, 1] (trained with the L1 loss)."""

    def __init__(self, width: int, action_dim: int) -> None:
        super().__init__()
        self.action_dim = action_dim
        self.model = ResidualMLP(action_dim * width, width, action_dim)

    def forward(self, hidden_BSD: Tensor) -> Tensor:
        """Hidden states of S = K * A slots `[B, S, D]` to numbers `[B, K, A]`."""
        hidden = hidden_BSD.to(self.model.fc1.weight.dtype)
        return self.model(hidden.unflatten(1, (-1, self.action_dim)).flatten(2))
