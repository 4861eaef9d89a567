"""Steering: a module beside a policy that changes how it decides, and not its weights; and the networks that judge.

    <policy folder>/
        steering.json          kind and settings
        steering.safetensors   its weights

BestOfN       of N sampled chunks the one that a critic prefers
Conditioned   a prompt's suffix, with classifier-free guidance
NoiseActor    the noise that a flow policy begins at

`VLAPolicy.from_pretrained` opens it with the policy. PPO, GRPO and fine-tuning begin from the policy alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_gym.errors import BadValue, unknown_name
from vla_gym.observation import decode_instruction, encode_instruction
from vla_gym.reading import read_json_object
from vla_policies.actions.noise import Noise
from vla_policies.checkpoint_io.folder import write_json
from vla_policies.checkpoint_io.json_records import from_json, to_json
from vla_policies.checkpoint_io.manifest import extend_manifest
from vla_policies.checkpoint_io.weights import fill, read_safetensors, write_safetensors
from vla_policies.conventions import Conventions
from vla_policies.flow_backbone import FlowBackbone
from vla_policies.nano.config import NanoConfig, config_from_options, fit_image_size
from vla_policies.nano.layers import QueryBlock, mlp
from vla_policies.nano.model import NanoEncoder, attend
from vla_policies.processing.observations import batch_observation, on_device
from vla_policies.types import ActionSample, PolicyInputs

LARGEST_IMAGE = 96
"""Side of the images that a critic of another family's policy looks at, at most; nano's has the policy's own."""
RETURN_BINS = 201
"""Bins of a distribution of returns (arXiv:2511.14759, section IV)."""
_LOG_STD = (-20.0, 2.0)
"""Bounds of the logarithm of the standard deviation, Stable-Baselines3's."""
CONFIG_FILE, WEIGHTS_FILE = "steering.json", "steering.safetensors"
POSITIVE, NEGATIVE = ". Advantage: positive", ". Advantage: negative"
"""Suffixes of the sentence (arXiv:2511.14759, section IV-C)."""

# Networks that judge ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CriticConfig:
    """Settings of a critic, part of `steering.json`."""

    conventions: Conventions
    """Observations and actions of the policy, images of the critic's size."""
    encoder: NanoConfig
    members: int = 2
    """E, networks of the ensemble."""
    hidden: int = 256
    """Features of their two hidden layers."""


def critic_config(conventions: Conventions, backbone: Any, members: int) -> CriticConfig:
    """Return settings for a policy: nano's own encoder, or a small one of nano's for other families."""
    own = getattr(backbone, "config", None)
    own = getattr(own, "trunk", own)
    if isinstance(own, NanoConfig):
        return CriticConfig(conventions=conventions, encoder=replace(own, freeze_encoder=False), members=members)
    size = min(conventions.image_size, LARGEST_IMAGE)
    encoder = config_from_options({"size": "tiny"}, size)
    small = replace(conventions, image_size=fit_image_size(size, encoder.grid))
    return CriticConfig(conventions=small, encoder=encoder, members=members)


class ObservationNet(NanoEncoder):
    """An observation as one vector; begins with the weights of a nano policy's encoder where it is for one."""

    def __init__(self, config: CriticConfig) -> None:
        super().__init__()
        self.config = config
        self.conventions = config.conventions
        width, heads = config.encoder.width, config.encoder.heads
        self.build_encoders(config.conventions, config.encoder)
        self.build_blocks(config.encoder)
        self.query = nn.Parameter(0.02 * torch.randn(1, width))
        self.reader = QueryBlock(width, heads, config.encoder.mlp_ratio)
        self.norm = nn.LayerNorm(2 * width)

    def begin_as(self, backbone: nn.Module) -> None:
        """Copy the encoder's weights from a policy's network where it has tensors of their names and shapes."""
        own = self.state_dict()
        given = {name: x for name, x in backbone.state_dict().items() if name in own and x.shape == own[name].shape}
        self.load_state_dict({**own, **given})

    def encode(self, obs: Mapping[str, Any]) -> Tensor:
        """Observations (arrays or tensors) to `[B, 2 * width]`."""
        batch, _ = batch_observation(obs, self.conventions)
        encoding = self.encode_observation(self.prepare(on_device(batch, self.query.device)))
        read_BD = attend(self.query, encoding, [self.reader])[:, 0]
        return self.norm(torch.cat([read_BD, encoding.places_BD], dim=1))


class ChunkCritic(ObservationNet):
    """E estimates of the return after a whole chunk: MLPs with layer norm, as RLPD's (arXiv:2302.02948)."""

    def __init__(self, config: CriticConfig) -> None:
        super().__init__(config)
        wanted = config.conventions
        inputs = 2 * config.encoder.width + wanted.chunk * wanted.action_dim
        sizes = (inputs, config.hidden, config.hidden, 1)
        self.layers = nn.ModuleList(EnsembleLinear(config.members, *pair) for pair in pairwise(sizes))

    def judge(self, encoded_BD: Tensor, action_NBKA: Tensor) -> Tensor:
        """Estimates for N chunks of each of B encoded observations, float32 `[E, N, B]`."""
        num = len(action_NBKA)
        x = torch.cat([encoded_BD.expand(num, -1, -1), action_NBKA.flatten(2)], dim=2).flatten(0, 1)
        x = x.expand(self.config.members, -1, -1)
        for number, layer in enumerate(self.layers):
            if number:
                x = functional.gelu(functional.layer_norm(x, x.shape[-1:]), approximate="tanh")
            x = layer(x)
        return x[..., 0].unflatten(1, (num, -1))

    def forward(self, obs: Mapping[str, Any], action_BKA: Tensor) -> Tensor:
        """Estimates for one chunk of each observation, `[E, B]`."""
        return self.judge(self.encode(obs), action_BKA[None])[:, 0]

    def best(self, encoded_BD: Tensor, action_NBKA: Tensor) -> Tensor:
        """Return the chunk of the highest mean estimate for each observation, `[B, K, A]`."""
        chosen_B = self.judge(encoded_BD, action_NBKA).mean(dim=0).argmax(dim=0)
        return action_NBKA[chosen_B, torch.arange(len(chosen_B), device=chosen_B.device)]


class ReturnModel(ObservationNet):
    """A distribution over returns in [-1, 0], of which the mean is the value (arXiv:2511.14759, eq. 1)."""

    centre_R: Tensor

    def __init__(self, config: CriticConfig) -> None:
        super().__init__(config)
        self.head = mlp(2 * config.encoder.width, config.hidden, RETURN_BINS)
        self.register_buffer("centre_R", torch.linspace(-1.0, 0.0, RETURN_BINS), persistent=False)

    def value(self, obs: Mapping[str, Any]) -> Tensor:
        """Expected returns, float32 `[B]`."""
        return self.head(self.encode(obs)).float().softmax(dim=1) @ self.centre_R

    def forward(self, obs: Mapping[str, Any], return_B: Tensor) -> Tensor:
        """Return the mean cross entropy to the bins of the returns."""
        bin_B = ((return_B + 1.0) * (RETURN_BINS - 1)).round().long().clamp(0, RETURN_BINS - 1)
        return functional.cross_entropy(self.head(self.encode(obs)).float(), bin_B)


class EnsembleLinear(nn.Module):
    """E linear layers at once, `[E, B, inputs]` to `[E, B, outputs]`; initialised as torch's."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x_EBI: Tensor) -> Tensor:
        """Apply each member's layer to its own row of inputs."""
        return torch.baddbmm(self.bias, x_EBI, self.weight)


# Steering ---------------------------------------------------------------------------------------------


class Steering(nn.Module, ABC):
    """Decides in a policy's place, with it."""

    kind: ClassVar[str]
    """Name in `steering.json`."""
    config: Any
    """Settings, a frozen dataclass."""

    @abstractmethod
    def act(self, policy: Any, obs: Mapping[str, Any], *, deterministic: bool, noise: Noise) -> ActionSample:
        """Decide for B observations; log-probabilities that no update reads are zero."""

    @abstractmethod
    def text(self) -> str:
        """A short description for reports."""

    def save(self, folder: Path) -> None:
        """Write both files into the policy's folder, and their hashes into its manifest."""
        write_json(folder / CONFIG_FILE, {"kind": self.kind, **to_json(self.config)})
        write_safetensors(folder / WEIGHTS_FILE, self.state_dict())
        extend_manifest(folder, (CONFIG_FILE, WEIGHTS_FILE))


@dataclass(frozen=True, kw_only=True)
class BestOfNConfig:
    """Settings of `BestOfN`."""

    critic: CriticConfig
    num_samples: int
    """N, chunks sampled for each decision."""


class BestOfN(Steering):
    """Plays of N sampled chunks the one that the critic's mean estimate prefers (Q-chunking, arXiv:2507.07969)."""

    kind = "best_of_n"

    def __init__(self, config: BestOfNConfig) -> None:
        super().__init__()
        self.config: BestOfNConfig = config
        self.critic = ChunkCritic(config.critic)

    def act(self, policy: Any, obs: Mapping[str, Any], *, deterministic: bool, noise: Noise) -> ActionSample:
        num, inputs = self.config.num_samples, policy.prepare(obs)
        action_NBKA = policy.backbone.candidates(inputs, policy.sampling, num, noise)
        return _sample(self.critic.best(self.critic.encode(obs), action_NBKA))

    def text(self) -> str:
        return f"best of {self.config.num_samples} chunks by {self.config.critic.members} critics"


@dataclass(frozen=True, kw_only=True)
class ConditionedConfig:
    """Settings of `Conditioned`."""

    suffix: str = POSITIVE
    """Text after the sentence."""
    guidance: float = 1.0
    """Weight of the suffix, of logits or velocities; 1: the suffix alone."""


class Conditioned(Steering):
    """Asks for good actions: the suffix that the policy learned for advantages above the threshold (RECAP)."""

    kind = "conditioned"

    def __init__(self, config: ConditionedConfig) -> None:
        super().__init__()
        self.config: ConditionedConfig = config

    def act(self, policy: Any, obs: Mapping[str, Any], *, deterministic: bool, noise: Noise) -> ActionSample:
        config, backbone = self.config, policy.backbone
        batch, _ = batch_observation(obs, policy.conventions)
        wanted = policy.prepare({**batch, "instruction": with_suffix(batch["instruction"], config.suffix)})
        if config.guidance == 1.0:
            sample: ActionSample = backbone.act(wanted, policy.sampling, deterministic=deterministic, noise=noise)
        else:
            sample = backbone.act_guided(
                *(wanted, policy.prepare(batch), config.guidance, policy.sampling),
                deterministic=deterministic,
                noise=noise,
            )
        return _sample(sample.action_BKA)

    def text(self) -> str:
        return f"'{self.config.suffix.strip('. ')}' with guidance {self.config.guidance:g}"


def with_suffix(instruction_BL: Tensor, suffix: str | Sequence[str]) -> Tensor:
    """Return the sentences, UTF-8 bytes, with a suffix: one for all, or one each."""
    suffixes = [suffix] * len(instruction_BL) if isinstance(suffix, str) else suffix
    sentences = (decode_instruction(row) for row in instruction_BL.cpu().numpy())
    pairs = zip(sentences, suffixes, strict=True)
    return torch.from_numpy(np.stack([encode_instruction(sentence + own) for sentence, own in pairs]))


@dataclass(frozen=True, kw_only=True)
class NoiseActorConfig:
    """Settings of `NoiseActor`."""

    sizes: tuple[int, ...]
    """Features of the layers, those of the observation first and of the noise last."""
    bound: float
    """Largest size of each number of noise."""


class NoiseActor(Steering):
    """Chooses the noise that a flow policy begins at (DSRL, arXiv:2506.15799): the actor of Stable-Baselines3's SAC."""

    kind = "noise_actor"

    def __init__(self, config: NoiseActorConfig) -> None:
        super().__init__()
        self.config: NoiseActorConfig = config
        *hidden, width = config.sizes
        layers: list[nn.Module] = []
        for pair in pairwise(hidden):
            layers += [nn.Linear(*pair), nn.ReLU()]
        self.latent = nn.Sequential(*layers)
        self.mean, self.log_std = nn.Linear(hidden[-1], width), nn.Linear(hidden[-1], width)

    def act(self, policy: Any, obs: Mapping[str, Any], *, deterministic: bool, noise: Noise) -> ActionSample:
        seen = SeenByFlow.of(policy, obs)
        latent_BH = self.latent(seen.feature_BE)
        chosen_BW = self.mean(latent_BH)
        if not deterministic:
            drawn_BW = noise.normal(*chosen_BW.shape, device=chosen_BW.device)
            chosen_BW = chosen_BW + self.log_std(latent_BH).clamp(*_LOG_STD).exp() * drawn_BW
        noise_BW = self.config.bound * torch.tanh(chosen_BW)
        record = {"noise": noise_BW, "feature": seen.feature_BE}
        return replace(_sample(seen.chunks(policy, noise_BW)), record=record)

    def text(self) -> str:
        return f"flow noise chosen in [{-self.config.bound:g}, {self.config.bound:g}]"


@dataclass(frozen=True)
class SeenByFlow:
    """B observations as a flow policy has encoded them."""

    inputs: PolicyInputs
    context: Any
    feature_BE: Tensor
    """The head's mean hidden state at t = 1 and x = 0, and the proprioception, float32."""

    @classmethod
    def of(cls, policy: Any, obs: Mapping[str, Any]) -> SeenByFlow:
        """Encode; raises `BadValue` for a policy that begins at no noise."""
        backbone = policy.backbone
        if not isinstance(backbone, FlowBackbone):
            raise BadValue(
                f"only a flow policy begins at noise (pi0, pi05, smolvla, nano-flow), got family '{backbone.family}', "
                "which draws tokens"
            )
        inputs = policy.prepare(obs)
        context = backbone.encode(inputs)
        device = inputs.pixels_BMCHW.device
        columns = [backbone.expert_feature(context, len(inputs.pixels_BMCHW), device).float()]
        if "state" in obs:
            state_BS = torch.as_tensor(obs["state"], dtype=torch.float32)
            columns.append(state_BS.reshape(len(columns[0]), -1).to(device))
        return cls(inputs, context, torch.cat(columns, dim=1))

    def chunks(self, policy: Any, noise_BW: Tensor) -> Tensor:
        """Environment actions `[B, K, A]` from noise `[B, D]`, the same for all H actions, or `[B, H * D]`."""
        backbone = policy.backbone
        noise_BLD = noise_BW.reshape(len(noise_BW), -1, backbone.flow_width)
        return backbone.chunks_from(self.context, self.inputs, noise_BLD.expand(-1, backbone.horizon, -1)).float()


def _sample(action_BKA: Tensor) -> ActionSample:
    return ActionSample(action_BKA, torch.zeros_like(action_BKA), action_BKA.new_zeros(len(action_BKA)))


_KINDS: Mapping[str, tuple[type[Any], type[Any]]] = {
    BestOfN.kind: (BestOfN, BestOfNConfig),
    Conditioned.kind: (Conditioned, ConditionedConfig),
    NoiseActor.kind: (NoiseActor, NoiseActorConfig),
}
"""Kind -> its class, and that of its settings."""


def read_steering(folder: Path) -> Steering | None:
    """Return the steering in a policy's folder; None where there is none."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        return None
    values = read_json_object(path)
    kind = str(values.pop("kind", ""))
    if kind not in _KINDS:
        raise unknown_name(f"kind of steering ('{path}')", kind, _KINDS)
    made, config = _KINDS[kind]
    steering: Steering = made(from_json(config, values, str(path)))
    weights = folder / WEIGHTS_FILE
    fill(steering, read_safetensors(weights), weights, lambda _: torch.float32)
    return steering
