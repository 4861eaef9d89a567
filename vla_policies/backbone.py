"""The interface between a model family and `VLAPolicy`.

`TokenBackbone` (of a network that gives logits for every token of the chunk at once) and `FlowBackbone` implement most
of it: a family that derives from one of them brings its network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from stable_baselines3.common.distributions import Distribution
from torch import Tensor, nn

from vla_gym.errors import BadValue
from vla_policies.actions.noise import TORCH_NOISE, Noise
from vla_policies.actions.sampling import ActionCodec, ActionTokenDistribution, Sampling, token_log_probs
from vla_policies.checkpoint_io.json_records import to_json
from vla_policies.checkpoint_io.weights import load_weights, write_checkpoint
from vla_policies.conventions import Conventions
from vla_policies.devices import for_gpu
from vla_policies.model_folder import FolderFacts, ModelFolder, Request
from vla_policies.modules.feature_cache import FeatureCache
from vla_policies.modules.lora_config import LoraSettings
from vla_policies.types import ActionSample, Evaluation, PolicyInputs


@dataclass(frozen=True)
class Header:
    """The content of a checkpoint folder without its weights."""

    family: str
    """Name in `registry.FAMILIES`."""
    conventions: Conventions
    """Observations and actions of the policy."""
    sampling: Sampling
    """Settings of token sampling."""
    model: Mapping[str, Any]
    """The family's own settings, as `Backbone.from_config` takes them."""


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Which parts of a network's actions are random."""

    sampled: bool = True
    """Whether actions can be sampled at all."""
    tokens: bool = True
    """Whether a sample is of tokens, which a temperature and a top k apply to."""
    deterministic: bool = False
    """Whether deterministic actions begin at drawn noise, too."""


class Backbone(nn.Module, ABC):
    """One model family: network and processor, in the units of `Conventions`."""

    family: ClassVar[str]
    """Name in `registry.FAMILIES`."""
    default_conventions: ClassVar[Conventions]
    """Observations and actions of fresh weights when no environment is given."""
    published: ClassVar[str | None] = None
    """Hub id of the bare family name; None = the name means fresh weights."""
    continuous: ClassVar[bool] = False
    """Whether log-probabilities are densities of real numbers, not probabilities of tokens."""
    fits_environment: ClassVar[bool] = False
    """Whether published checkpoints take any chunk and cameras of the environment."""
    takes_any_chunk: ClassVar[bool] = False
    """Whether published checkpoints of a fixed action decide chunks of any length, set by their option `chunk`."""
    program_options: ClassVar[tuple[str, ...]] = ()
    """The `backbone_kwargs` by which one maker's program reads a checkpoint otherwise than another's."""
    played_options: ClassVar[Mapping[str, Any]] = {}
    """The `backbone_kwargs` with which all makers' programs let published checkpoints act."""
    length_hint: ClassVar[str] = ""
    """Advice where actions of the environment have another length."""
    recompute_option: ClassVar[str | None] = None
    """The `backbone_kwargs` setting that turns activation checkpointing on, where the family has one."""
    source: str | None = None
    """Folder or Hub id the weights came from; None when fresh."""
    source_revision: str | None = None
    """Commit of that Hub id."""
    source_folder: Path | None = None
    """Where those weights were read; None when fresh."""
    built_for_gpu: bool
    """Whether weight types of "auto" are a GPU's, see `devices.built_for`."""

    def __init__(self, conventions: Conventions) -> None:
        super().__init__()
        self.conventions = conventions
        self.built_for_gpu = for_gpu()

    # Building -------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def fresh(cls, conventions: Conventions, options: Mapping[str, Any]) -> Self:
        """New weights for an environment; `options` are the user's `backbone_kwargs`, unknown ones raise."""

    @classmethod
    @abstractmethod
    def from_config(cls, conventions: Conventions, config: Mapping[str, Any], where: str) -> Self:
        """The network of `config` (from a checkpoint's file `where`), weights unset."""

    @classmethod
    def wants_fresh(cls, options: Mapping[str, Any]) -> bool:
        """Whether these `backbone_kwargs` of the bare family name mean fresh weights."""
        return cls.published is None

    @classmethod
    def with_options(cls, model: Mapping[str, Any], options: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Settings of a checkpoint in this project's layout with the user's `backbone_kwargs` over them."""
        if options:
            raise BadValue(f"backbone_kwargs are for fresh weights; '{where}' is a checkpoint (got {sorted(options)})")
        return model

    @classmethod
    def dtype_options(cls, dtype: str) -> dict[str, Any]:
        """The `backbone_kwargs` that keep the large part of the weights in `dtype`."""
        if dtype in ("auto", "float32"):
            return {}
        raise BadValue(f"'{cls.family}' keeps its weights in float32; dtype must be that or None, got '{dtype}'")

    @classmethod
    def planned_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """The `backbone_kwargs` of fresh weights of the shape and type that `options` mean on a GPU: without a size,
        those of the published network."""
        return dict(options)

    def config_json(self) -> dict[str, Any]:
        """Plain JSON values from which `from_config` builds this network: the fields of its `config`."""
        return to_json(self.config)

    # Folders that others published ----------------------------------------------------------------

    @classmethod
    def read_official(cls, model: ModelFolder, request: Request) -> Header:
        """Header of a folder in the layout that its makers publish."""
        raise BadValue(f"family '{cls.family}' is read from folders of our own layout only, got '{model.folder}'")

    @classmethod
    def recognises(cls, model: ModelFolder) -> bool | None:
        """Whether a folder that several families could read is one of this family's; None = nothing in it tells."""
        return True

    @classmethod
    def implied_config(cls, folder: Path) -> Mapping[str, Any] | None:
        """Settings in place of the `config.json` that a published folder lacks; None where its weights are of no such
        network."""
        return None

    @classmethod
    def facts(cls, model: ModelFolder) -> FolderFacts:
        """Return how the makers of a published folder trained and play it, as far as its files tell."""
        return FolderFacts()

    @classmethod
    def read_as(cls, model: Mapping[str, Any]) -> dict[str, Any]:
        """How observations and actions are read by these settings, those of a `Header`, as JSON values for results."""
        return {"head": "tokens"}

    # Weights --------------------------------------------------------------------------------------

    def load(self, folder: Path, beside: Sequence[Path] = ()) -> None:
        """Read the weights of a checkpoint folder; missing, unexpected and misshapen tensors raise.

        Where the default device is meta, only the files' headers are read. `beside`: see `ModelFolder`; heads may lie
        there.
        """
        load_weights(folder, self)

    def restore(self, folder: Path) -> None:
        """As `load`, into a network that already holds weights: tensors are overwritten in place, so an
        optimiser goes on with them."""
        self.load(folder)

    def save(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Write a folder that `load` reads; `config` is the `config.json` of this project's layout."""
        write_checkpoint(folder, config, self)

    # LoRA adapters, see `LoraBackbone` ------------------------------------------------------------

    @property
    def has_adapter(self) -> bool:
        """Whether a LoRA adapter is attached."""
        return False

    @property
    def lora(self) -> LoraSettings | None:
        """The `lora` of the `backbone_kwargs` that attach an adapter of the same shape; None where none do."""
        return None

    def save_adapter(self, folder: Path, config: Mapping[str, Any], base: str) -> None:
        """Write the LoRA adapter and the value head alone; `base` names the model they belong to."""
        raise BadValue(f"family '{self.family}' has no adapters; use save_pretrained")

    def load_adapter(self, folder: Path) -> None:
        """Attach the adapter of a folder to the loaded weights."""
        raise BadValue(f"family '{self.family}' has no adapters, got the adapter folder '{folder}'")

    adapters_on: bool = True
    """Whether the LoRA adapter, where there is one, counts."""

    @contextmanager
    def adapter_off(self) -> Iterator[None]:
        """Context manager that computes without the LoRA adapter."""
        yield

    def merge_adapter(self) -> None:
        """Merge the adapter into the weights, which train from then on."""
        raise BadValue(f"family '{self.family}' has no adapters to merge")

    # Deciding -------------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self, obs: Mapping[str, Tensor]) -> PolicyInputs:
        """Observation tensors `[B, ...]` (uint8 images and instruction bytes) to network inputs."""

    @abstractmethod
    def act(
        self, inputs: PolicyInputs, sampling: Sampling, *, deterministic: bool, noise: Noise = TORCH_NOISE
    ) -> ActionSample:
        """Decide; random numbers come from `noise`, a row of it for each observation."""

    def candidates(self, inputs: PolicyInputs, sampling: Sampling, num: int, noise: Noise = TORCH_NOISE) -> Tensor:
        """Sample `num` chunks of environment actions for each observation, float32 `[num, B, K, A]`."""
        acts = [self.act(inputs, sampling, deterministic=False, noise=noise) for _ in range(num)]
        return torch.stack([sample.action_BKA for sample in acts])

    def act_guided(
        self,
        inputs: PolicyInputs,
        plain: PolicyInputs,
        guidance: float,
        sampling: Sampling,
        *,
        deterministic: bool,
        noise: Noise = TORCH_NOISE,
    ) -> ActionSample:
        """Decide by plain + guidance x (inputs - plain), of logits or velocities: classifier-free guidance
        (Ho and Salimans 2022, arXiv:2207.12598)."""
        raise BadValue(f"family '{self.family}' decides token after token and takes no guidance; set guidance to 1")

    @abstractmethod
    def evaluate(self, inputs: PolicyInputs, record: Mapping[str, Tensor], sampling: Sampling) -> Evaluation:
        """Score earlier decisions by the present weights, with gradients."""

    @abstractmethod
    def value(self, inputs: PolicyInputs) -> Tensor:
        """State values, float32 `[B]`."""

    def distribution(self, inputs: PolicyInputs, sampling: Sampling) -> Distribution:
        """The distribution over chunks, where the family has one in closed form."""
        raise BadValue(f"'{self.family}' has no closed-form action distribution; use zoo.PPO or zoo.GRPO")

    def record_of(self, action_BKA: Tensor) -> Mapping[str, Tensor]:
        """The record of a decision from its env action alone, where the family allows that."""
        raise BadValue(f"'{self.family}' cannot score bare actions; use zoo.PPO or zoo.GRPO, which keep records")

    @classmethod
    def draws(cls, model: Mapping[str, Any]) -> Draws:
        """Which parts are random; `model` is that of a `Header`, or the `backbone_kwargs` of fresh weights."""
        return Draws()

    def action_selection_text(self, sampling: Sampling, *, deterministic: bool) -> str:
        """A short description of how actions are selected, on which a success rate depends besides the weights."""
        if deterministic:
            return "deterministic actions" + (" (nearest the mean)" if sampling.greedy == "mean" else "")
        top = f" among the top {sampling.top_k}" if sampling.top_k else ""
        return f"actions sampled at temperature {sampling.temperature:g}{top}"

    # Learning -------------------------------------------------------------------------------------

    @abstractmethod
    def value_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the value head, which may have a learning rate of their own."""

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """Return the `value_parameters` on which no action depends: they may train while the policy stays fixed."""
        return self.value_parameters()

    @property
    def imitated_steps(self) -> int:
        """Actions of a demonstration that a frame is learned with: the chunk's, or all that are predicted at once."""
        return self.conventions.chunk

    @property
    def step_values(self) -> bool:
        """Whether the critic has an output for each step of the chunk."""
        return self.conventions.chunk == 1

    @contextmanager
    def critic_trained_alone(self) -> Iterator[None]:
        """Context manager in which only `critic_parameters` change: what does not depend on them may be kept."""
        yield

    # What frozen parts make of an observation ------------------------------------------------------

    kept: FeatureCache | None = None
    """Features of earlier observations; None: nothing is kept."""
    features_have_texts_length: bool = False
    """Whether features of an observation depend on the length of the longest text beside it."""

    def features(self, inputs: PolicyInputs) -> tuple[Tensor, ...]:
        """Return the frozen parts' outputs for B observations, batch first; `PolicyInputs.features` takes them."""
        raise NotImplementedError(f"'{self.family}' keeps no features")

    def set_recompute(self, on: bool) -> None:
        """Turn activation checkpointing on or off, where the family has it (`recompute_option`)."""

    def keep_features(self, max_bytes: int | None = None) -> None:
        """Keep features from acting for the epochs of an update, where parts are frozen and nothing else was set; most
        bytes as of `FeatureCache`."""


# Token policies ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BackboneOutput:
    """One forward pass of a token family."""

    logits_BKAV: Tensor
    """Unnormalised scores of every bin, any float dtype."""
    value_B: Tensor
    """State value, any float dtype."""
    value_BK: Tensor | None = None
    """Value of each step of the chunk, float32, where the critic has an output for each."""
    privileged_BP: Tensor | None = None
    """Prediction of `backbone.privileged`, where there is that head."""


class TokenBackbone(Backbone):
    """Discrete action tokens, the whole chunk in one pass: subclasses implement `forward`."""

    def __init__(self, conventions: Conventions, codec: ActionCodec) -> None:
        super().__init__(conventions)
        self.codec = codec

    @abstractmethod
    def forward(self, inputs: PolicyInputs) -> BackboneOutput:
        """Logits of all K x A tokens and the state value, from one pass over the shared prefix."""

    def distribution(self, inputs: PolicyInputs, sampling: Sampling) -> ActionTokenDistribution:
        return self.distribution_of(self(inputs), sampling)

    def record_of(self, action_BKA: Tensor) -> Mapping[str, Tensor]:
        return {"token": self.codec.encode(action_BKA)}

    def act(
        self, inputs: PolicyInputs, sampling: Sampling, *, deterministic: bool, noise: Noise = TORCH_NOISE
    ) -> ActionSample:
        return self._drawn(self(inputs), sampling, deterministic=deterministic, noise=noise)

    def candidates(self, inputs: PolicyInputs, sampling: Sampling, num: int, noise: Noise = TORCH_NOISE) -> Tensor:
        return self.codec.decode(self.distribution(inputs, sampling).draw_many(num, noise))

    def act_guided(
        self,
        inputs: PolicyInputs,
        plain: PolicyInputs,
        guidance: float,
        sampling: Sampling,
        *,
        deterministic: bool,
        noise: Noise = TORCH_NOISE,
    ) -> ActionSample:
        wanted, other = self(inputs), self(plain)
        logits_BKAV = other.logits_BKAV + guidance * (wanted.logits_BKAV - other.logits_BKAV)
        output = replace(wanted, logits_BKAV=logits_BKAV)
        return self._drawn(output, sampling, deterministic=deterministic, noise=noise)

    def _drawn(self, output: BackboneOutput, sampling: Sampling, *, deterministic: bool, noise: Noise) -> ActionSample:
        distribution = self.distribution_of(output, sampling)
        token_BKA = distribution.draw(deterministic, noise)
        return ActionSample(
            action_BKA=self.codec.decode(token_BKA),
            logprob_BKA=distribution.token_log_prob(token_BKA),
            value_B=output.value_B.float(),
            record={"token": token_BKA},
            value_BK=output.value_BK,
        )

    def evaluate(self, inputs: PolicyInputs, record: Mapping[str, Tensor], sampling: Sampling) -> Evaluation:
        output: BackboneOutput = self(inputs)
        distribution = self.distribution_of(output, sampling)
        return Evaluation(
            logprob_BKA=distribution.token_log_prob(record["token"]),
            entropy_BKA=distribution.token_entropy(),
            value_B=output.value_B.float(),
            value_BK=output.value_BK,
            privileged_BP=output.privileged_BP,
        )

    def value(self, inputs: PolicyInputs) -> Tensor:
        return self(inputs).value_B.to(torch.float32)

    def distribution_of(self, output: BackboneOutput, sampling: Sampling) -> ActionTokenDistribution:
        """The distribution over chunks that a forward pass gave."""
        return ActionTokenDistribution(token_log_probs(output.logits_BKAV, sampling), self.codec, sampling.greedy)
