"""`VLAPolicy`: a vision-language-action model behind Stable-Baselines3's `ActorCriticPolicy`.

SB3's methods take and return whole chunks of environment actions; `act` and `evaluate` take records and return
one log-probability for each action token. Both go through the same backbone methods.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.common.utils import get_device
from torch import Tensor

from vla_gym.errors import BadValue
from vla_gym.specs import ActionSpec
from vla_policies.actions.noise import TORCH_NOISE, Noise
from vla_policies.actions.sampling import Greedy, Sampling
from vla_policies.backbone import Backbone
from vla_policies.checkpoint_io.hub import OWN_BASE
from vla_policies.checkpoint_io.json_records import as_annotated, changed
from vla_policies.conventions import Conventions
from vla_policies.devices import built_for, download, upload
from vla_policies.graphs import Call, Graphs, cuda_capture
from vla_policies.loading import build_backbone, fresh_options, save_adapter, save_checkpoint
from vla_policies.modules.training import GroupScaledAdamW, compile_blocks, parameter_groups
from vla_policies.processing.observations import SEEN, batch_observation, observation_keys, on_device
from vla_policies.resolver import PolicyRef, resolve_policy
from vla_policies.steering import Steering, read_steering
from vla_policies.types import ActionSample, Evaluation, PolicyInputs, tensors_of

Observation = PyTorchObs | Mapping[str, Any]
Run = Callable[[Hashable, Call, PolicyInputs, Noise], Any]
"""Runs a call on inputs, by a name."""


class VLAPolicy(ActorCriticPolicy):
    """Policy and critic on one shared network.

    :param backbone: a family ("nano": fresh weights fitted to the spaces), a checkpoint folder, or a Hub id; or what
        `resolve_policy` made of one, which says the settings up to `verify` itself.
    :param backbone_kwargs: options of the family, e.g. `{"size": "tiny"}` for fresh weights.
    :param family: which family reads the checkpoint, where several could.
    :param unnorm_key: data set whose statistics turn the network's numbers into actions, where there are any.
    :param suite: suite of the environment's tasks; chooses statistics of that name where `unnorm_key` does not.
    :param revision: branch, tag or commit of a Hub id.
    :param base: folder or Hub id of the model that an adapter belongs to, instead of the one that the adapter names.
    :param temperature: sampling temperature; None takes the checkpoint's, 1 when fresh.
    :param top_k: draw from the k likeliest tokens, 0 = all; None takes the checkpoint's, 0 when fresh.
    :param greedy: deterministic actions, "likeliest" or "mean"; None takes the checkpoint's, "likeliest"
        when fresh.
    :param value_lr: the value head's own learning rate at the start; follows the schedule. None = the same.
    :param verify: whether the folder's files, and an adapter's base model, must be those of its `manifest.json`.
    :param compile: run the network's blocks through `torch.compile`, at their first call.
    :param cuda_graphs: on a GPU, launch a decision's kernels as one graph.
    :param action_spec: how the environment's actions are written: published families emit them so, fresh
        weights keep it for their checkpoints.
    :param optimizer_kwargs: over `{"eps": 1e-5, "weight_decay": 0.0}`; `muon`: linear layers step by Muon.
    """

    backbone: Backbone
    sampling: Sampling
    steering: Steering | None = None
    """Decides in the policy's place; None: the policy itself."""

    def __init__(  # noqa: PLR0913 - SB3 hands its policy keywords one by one
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        *,
        backbone: str | Path | PolicyRef = "nano",
        backbone_kwargs: Mapping[str, Any] | None = None,
        family: str | None = None,
        unnorm_key: str | None = None,
        suite: str | None = None,
        revision: str | None = None,
        base: str | None = None,
        verify: bool = True,
        temperature: float | None = None,
        top_k: int | None = None,
        greedy: Greedy | None = None,
        value_lr: float | None = None,
        compile: bool = False,
        cuda_graphs: bool = True,
        action_spec: ActionSpec | None = None,
        use_sde: bool = False,
        normalize_images: bool = True,
        optimizer_class: type[torch.optim.Optimizer] = GroupScaledAdamW,
        optimizer_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if use_sde:
            raise BadValue("VLAPolicy draws action tokens; use_sde (state-dependent noise) does not apply")
        grouped = value_lr is not None or "muon" in (optimizer_kwargs or {})
        if grouped and not issubclass(optimizer_class, GroupScaledAdamW):
            raise BadValue(f"value_lr and muon need the optimiser GroupScaledAdamW, got {optimizer_class.__name__}")
        # Not ActorCriticPolicy.__init__: it builds the MLPs that a backbone stands in for.
        BasePolicy.__init__(
            self,
            observation_space,
            action_space,
            normalize_images=normalize_images,
            optimizer_class=optimizer_class,
            optimizer_kwargs={"eps": 1e-5, "weight_decay": 0.0, **(optimizer_kwargs or {})},
        )
        self.use_sde = False
        self.value_lr = as_annotated(float | None, value_lr, "value_lr of VLAPolicy")
        if self.value_lr is not None and self.value_lr <= 0:
            raise BadValue(f"value_lr of VLAPolicy must be above 0, got {self.value_lr}")
        if isinstance(backbone, PolicyRef):
            ref = backbone
        else:
            settings = {
                "family": family,
                "unnorm_key": unnorm_key,
                "revision": revision,
                "base": base,
                "verify": verify,
                "backbone_kwargs": backbone_kwargs,
            }
            ref = resolve_policy(backbone, settings, suite=suite, action_spec=action_spec)
        self.backbone, saved_sampling = build_backbone(ref, observation_space, action_space)
        given: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "greedy": greedy}
        given = {name: value for name, value in given.items() if value is not None}
        self.sampling = changed(saved_sampling, given, "VLAPolicy")
        self.cuda_graphs = as_annotated(bool, cuda_graphs, "cuda_graphs of VLAPolicy")
        if compile:
            compile_blocks(self.backbone)
        self._build(lr_schedule)

    def _build(self, lr_schedule: Schedule) -> None:
        self.graphs: Graphs | None = None
        """Recorded decisions; of a GPU."""
        rate = lr_schedule(1)
        if self.value_lr is not None and rate <= 0:
            raise BadValue(f"value_lr needs a learning rate > 0 to be measured against, got {rate}")
        scale = 1.0 if self.value_lr is None else self.value_lr / rate
        kwargs = dict(self.optimizer_kwargs)
        muon = kwargs.pop("muon", False)
        groups = parameter_groups(self.backbone, self.backbone.value_parameters(), scale, muon=muon)
        self.optimizer = self.optimizer_class(groups, lr=rate, **kwargs)  # type: ignore[call-arg]

    # Called by PPO and GRPO -------------------------------------------------------------------------

    @property
    def conventions(self) -> Conventions:
        """Observations and actions of the policy."""
        return self.backbone.conventions

    def action_selection_text(self, *, deterministic: bool) -> str:
        """A short description of how actions are selected, for reports."""
        if self.steering is not None:
            return self.steering.text()
        return self.backbone.action_selection_text(self.sampling, deterministic=deterministic)

    @torch.no_grad()
    def act(self, obs: Observation, deterministic: bool = False, noise: Noise = TORCH_NOISE) -> ActionSample:
        """Decide for B observations (the dict of `as_sb3()`, arrays or tensors); `noise` has B rows.

        Everything of the decision is on the CPU, where environments and buffers are: a GPU is waited for once.
        """
        if self.steering is not None:
            return self._steered(obs, deterministic, noise)
        seen = None if self.backbone.kept is None else observation_keys(batch_observation(obs, self.conventions)[0])
        sample = self._decide(self.prepare(obs, seen, run=self._run), deterministic, noise)
        return sample if seen is None else replace(sample, record={**sample.record, SEEN: seen})

    def steer(self, steering: Steering | None) -> None:
        """Let `steering` decide in the policy's place, whose weights it is no part of; None: the policy itself."""
        object.__setattr__(self, "steering", steering)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """As torch's, of what steers it, too."""
        if self.steering is not None:
            self.steering.to(*args, **kwargs)
        return super().to(*args, **kwargs)

    def _steered(self, obs: Observation, deterministic: bool, noise: Noise) -> ActionSample:
        assert self.steering is not None
        batch, _ = batch_observation(obs, self.conventions)
        sample = self.steering.act(self, batch, deterministic=deterministic, noise=noise)
        return _on_host(sample, len(sample.action_BKA))

    def _decide(self, inputs: PolicyInputs, deterministic: bool, noise: Noise) -> ActionSample:
        backbone, sampling = self.backbone, self.sampling

        def decide(inputs: PolicyInputs, noise: Noise) -> ActionSample:
            return backbone.act(inputs, sampling, deterministic=deterministic, noise=noise)

        return _on_host(self._run(("decide", sampling, deterministic), decide, inputs, noise), len(inputs.text_BL))

    def _run(self, name: Hashable, call: Call, inputs: PolicyInputs, noise: Noise) -> Any:
        """`call(inputs, noise)` as a CUDA graph where it can be one, see `Graphs.run`."""
        if self.graphs is None and self.cuda_graphs and self.device.type == "cuda":
            self.graphs = Graphs(cuda_capture(self.device))
        if self.graphs is None:
            return call(inputs, noise)
        name = name, self.training, self.backbone.adapters_on
        return self.graphs.run(name, call, inputs, noise, self._weights)

    def _weights(self) -> list[Tensor]:
        return [*self.backbone.parameters(), *self.backbone.buffers()]

    @torch.no_grad()
    def predict_with_noise(self, observation: Observation, noise: Noise, *, deterministic: bool = False) -> np.ndarray:
        """Env actions `[B, K, A]` for a batch, as of `predict`, with random numbers from `noise`, which has B rows."""
        space = self.action_space
        assert isinstance(space, spaces.Box)
        self.set_training_mode(False)
        if self.steering is not None:
            sample = self._steered(observation, deterministic, noise)
        else:
            # Nothing is kept of observations that no update goes over.
            batch, _ = batch_observation(observation, self.conventions)
            sample = self._decide(self.backbone.prepare(on_device(batch, self.device)), deterministic, noise)
        return np.clip(self._as_actions(sample.action_BKA).numpy(), space.low, space.high)

    def evaluate(self, obs: Observation, record: Mapping[str, Tensor]) -> Evaluation:
        """Score the decisions in `record` (of an `ActionSample`) by the present weights, with gradients."""
        record = on_device(record, self.device)
        return self.backbone.evaluate(self.prepare(obs, record.pop(SEEN, None)), record, self.sampling)

    def prepare(self, obs: Observation, seen: Tensor | None = None, run: Run | None = None) -> PolicyInputs:
        """Return the backbone's inputs of B observations (the dict of `as_sb3()`), on the policy's device.

        Where features are kept they have these, found by `seen`, the `observation_keys` (None: computed here),
        or made by `run`.
        """
        batch, _ = batch_observation(obs, self.conventions)
        inputs = self.backbone.prepare(on_device(batch, self.device))
        kept = self.backbone.kept
        if kept is None:
            return inputs
        length = inputs.text_BL.shape[1] if self.backbone.features_have_texts_length else 0
        keys = [(*key, length) for key in (observation_keys(batch) if seen is None else seen).tolist()]

        def features(places: list[int]) -> tuple[Tensor, ...]:
            part = inputs
            if len(places) < len(keys):
                index = torch.tensor(places)
                part = inputs.mapped(lambda x: x[upload(index, x.device)])
            if run is None:
                return self.backbone.features(part)
            made = run("features", lambda inputs, _: self.backbone.features(inputs), part, TORCH_NOISE)
            return tuple(x[: len(places)] for x in made)

        return replace(inputs, features=kept.rows(keys, features))

    # Stable-Baselines3's contract -------------------------------------------------------------------

    def forward(self, obs: PyTorchObs, deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Env actions `[B, *action_space.shape]`, values `[B, 1]`, log-probabilities of chunks `[B]`."""
        sample = self.act(obs, deterministic)
        return (
            self._as_actions(sample.action_BKA),
            sample.value_B[:, None],
            sample.logprob_BKA.sum(dim=(1, 2)),
        )

    def evaluate_actions(self, obs: PyTorchObs, actions: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Values `[B, 1]`, log-probabilities `[B]` and entropies `[B]` of env actions, flat or `[B, K, A]`."""
        conventions = self.conventions
        action_BKA = actions.reshape(-1, conventions.chunk, conventions.action_dim)
        result = self.evaluate(obs, self.backbone.record_of(action_BKA))
        logprob_B, entropy_B = result.logprob_BKA.sum(dim=(1, 2)), result.entropy_BKA.sum(dim=(1, 2))
        return result.value_B[:, None], logprob_B, entropy_B

    def predict_values(self, obs: PyTorchObs) -> Tensor:
        """State values `[B, 1]`."""
        return self.backbone.value(self.prepare(obs))[:, None]

    def get_distribution(self, obs: PyTorchObs) -> Distribution:
        """The distribution over action chunks."""
        return self.backbone.distribution(self.prepare(obs), self.sampling)

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> Tensor:
        return self._as_actions(self.act(observation, deterministic).action_BKA)

    def obs_to_tensor(self, observation: Any) -> tuple[PyTorchObs, bool]:
        """Tensors `[B, ...]` of the keys the policy reads, and whether a batch was given."""
        batch, is_batch = batch_observation(observation, self.conventions)
        return {**on_device(batch, self.device)}, is_batch

    def _as_actions(self, action_BKA: Tensor) -> Tensor:
        assert self.action_space.shape is not None
        return action_BKA.reshape(-1, *self.action_space.shape)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "lr_schedule": self._dummy_schedule,
            "backbone": self.backbone.family,
            "backbone_kwargs": fresh_options(self.backbone),
            "temperature": self.sampling.temperature,
            "top_k": self.sampling.top_k,
            "greedy": self.sampling.greedy,
            "action_spec": self.conventions.action_spec,
            "normalize_images": self.normalize_images,
            "optimizer_class": self.optimizer_class,
            "optimizer_kwargs": self.optimizer_kwargs,
        }

    # Checkpoints ------------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that loads again: `config.json` and weights, in the layout the family is published in."""
        save_checkpoint(Path(folder), self.backbone, self.sampling)
        if self.steering is not None:
            self.steering.save(Path(folder))

    def save_trained(self, folder: str | Path) -> None:
        """Write the weights that training changed, to load or resume: the adapter where there is one, else all.

        An adapter of weights that were fresh is written beside them: merged, no run could go on from them.
        """
        if not self.backbone.has_adapter:
            self.save_pretrained(folder)
        elif self.backbone.source is not None:
            self.save_adapter(folder)
        else:
            with self.backbone.adapter_off():
                self.save_pretrained(folder)
            self.save_adapter(folder, OWN_BASE)

    def save_adapter(self, folder: str | Path, base: str | None = None) -> None:
        """Write the LoRA adapter and the value head alone, in plain peft's layout; the folder loads again by itself.

        `base` names the model it belongs to, a folder or Hub id; None = where the weights came from.
        """
        save_adapter(Path(folder), self.backbone, self.sampling, base)
        if self.steering is not None:
            self.steering.save(Path(folder))

    def merge_adapter(self) -> None:
        """Merge the LoRA adapter into the weights. All weights train from then on, with a new optimiser."""
        self.backbone.merge_adapter()
        self._build(lambda _: self.optimizer.param_groups[0]["lr"])

    @classmethod
    def from_pretrained(  # noqa: PLR0913 - public, all by keyword
        cls,
        name: str | Path | PolicyRef,
        family: str | None = None,
        unnorm_key: str | None = None,
        *,
        revision: str | None = None,
        base: str | None = None,
        verify: bool = True,
        suite: str | None = None,
        backbone_kwargs: Mapping[str, Any] | None = None,
        action_spec: ActionSpec | None = None,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        device: torch.device | str = "auto",
        dtype: torch.dtype | str | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        greedy: Greedy | None = None,
        compile: bool = False,
        cuda_graphs: bool = True,
        to_act: bool = False,
    ) -> Self:
        """A policy from a family name, a checkpoint folder or a Hub id (fetched once, at `revision`), or from what
        `resolve_policy` made of one, which says itself how it is read.

        Without spaces it takes its own: those of its checkpoint, or the family's default for fresh weights.
        `family` must agree with what is found, or choose where several families read one layout;
        `unnorm_key`, or else `suite`, chooses action statistics where there are any. `dtype` is that of the
        large part of the weights (heads and critic stay float32). `temperature`, `top_k`, `greedy`,
        `verify`, `compile` and `cuda_graphs`: see the class. `to_act`: the policy is not to be trained, so that a
        published checkpoint
        opens with the heads and inputs it was trained with (OpenVLA-OFT's regression head) where
        `backbone_kwargs` does not say otherwise.
        """
        if isinstance(name, PolicyRef):
            ref = name.fetched()
        else:
            settings = {
                "family": family,
                "unnorm_key": unnorm_key,
                "revision": revision,
                "base": base,
                "verify": verify,
                "backbone_kwargs": backbone_kwargs,
                "dtype": dtype,
            }
            ref = resolve_policy(name, settings, suite=suite, action_spec=action_spec, to_act=to_act)
        own = ref.conventions
        with built_for(get_device(device)):
            policy = cls(
                own.observation_space() if observation_space is None else observation_space,
                own.action_space() if action_space is None else action_space,
                cls._dummy_schedule,
                backbone=ref,
                temperature=temperature,
                top_k=top_k,
                greedy=greedy,
                compile=compile,
                cuda_graphs=cuda_graphs,
            )
        if ref.folder is not None:
            policy.steer(read_steering(ref.folder))
        return policy.to(get_device(device))


def _on_host(sample: ActionSample, num: int) -> ActionSample:
    """The first `num` rows, on the CPU."""
    found = iter(download([x[:num] for x in tensors_of(sample)]))
    return sample.mapped(lambda _: next(found))
