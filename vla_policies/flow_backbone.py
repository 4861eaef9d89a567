"""Flow policies as actors: a chain of denoising steps is a decision with a log-probability.

FlowBackbone          act, evaluate and value for any family with a velocity network
├── VLMFlowBackbone   on a vision-language model: Pi0Backbone, Pi05Backbone, SmolVLABackbone
└── NanoFlowBackbone

`act` stores the whole chain x_0 (noise) ... x_J (action) and, where one step was random, which; `evaluate`
runs the same network calls on the stored chain, so the ratio before the first update is exactly 1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vla_gym.errors import BadValue
from vla_policies.actions.flow import (
    FlowSettings,
    flow_cps_law,
    flow_sde_law,
    flow_times,
    gaussian_entropy,
    gaussian_log_prob,
    join_steps,
    matching_pair,
    step_mean,
)
from vla_policies.actions.noise import TORCH_NOISE, Noise
from vla_policies.actions.sampling import Sampling
from vla_policies.backbone import Backbone, Draws
from vla_policies.conventions import Conventions
from vla_policies.devices import constant
from vla_policies.types import ActionSample, Evaluation, PolicyInputs

FIXED_NOISE_SEED = 0
"""Seed of the noise that deterministic decisions start from."""


@dataclass(frozen=True)
class Denoised:
    """One pass of the flow head over B samples."""

    velocity_BHD: Tensor
    """Noise minus action, float32."""
    hidden_BHE: Tensor
    """Hidden state of each predicted action, after the last norm, float32, E features."""


class FlowBackbone(Backbone):
    """Continuous chunks by denoising: subclasses implement `encode`, `denoise`, `value_of`, `to_env`.

    `horizon` is H, the actions predicted at once (at least K), and `flow_width` D, the numbers per action
    of the network (at least A). Log-probabilities are those of the first K actions and A dims.
    """

    continuous: ClassVar[bool] = True
    noise_head: nn.Module | None
    """Network of Flow-Noise's standard deviations; None with another scheme."""

    def __init__(self, conventions: Conventions, flow: FlowSettings, *, horizon: int, flow_width: int) -> None:
        super().__init__(conventions)
        if conventions.chunk > horizon or conventions.action_dim > flow_width:
            raise BadValue(
                f"'{self.family}' predicts {horizon} actions of up to {flow_width} dims; the environment wants "
                f"chunks of {conventions.chunk} x {conventions.action_dim}"
            )
        self.flow = flow
        self.horizon = horizon
        self.flow_width = flow_width

    # Implemented by families --------------------------------------------------------------------------

    @abstractmethod
    def encode(self, inputs: PolicyInputs) -> Any:
        """Encode the observation (images, sentence) for `denoise`, once per decision."""

    @abstractmethod
    def denoise(self, context: Any, x_BHD: Tensor, time_B: Tensor) -> Denoised:
        """The velocity at `x_BHD` and `time_B`, both float32."""

    @abstractmethod
    def value_of(self, context: Any) -> Tensor:
        """State values, float32 `[B]`."""

    @abstractmethod
    def to_env(self, x_BHD: Tensor, inputs: PolicyInputs) -> Tensor:
        """Denoised chunks to environment actions, float32 `[B, K, A]` in [-1, 1]."""

    def learned_std(self, hidden_BHE: Tensor) -> Tensor:
        """Standard deviation of a Flow-Noise step, float32 `[B, H, D]`."""
        assert self.noise_head is not None
        return self.noise_head(hidden_BHE)

    def from_env(self, action_BKA: Tensor, inputs: PolicyInputs) -> Tensor:
        """Inverse of `to_env` for K to H actions, `[B, H, D]`, for imitation; zero after them and in padding dims."""
        raise BadValue(f"family '{self.family}' cannot be fine-tuned on environment actions")

    # Called by algorithms -----------------------------------------------------------------------------

    def act(
        self, inputs: PolicyInputs, sampling: Sampling, *, deterministic: bool, noise: Noise = TORCH_NOISE
    ) -> ActionSample:
        """Decide; `deterministic` follows the ODE from the noise that `FlowSettings.eval_noise` names."""
        _refuse_token_settings(sampling)
        context = self.encode(inputs)
        num_samples, device = len(inputs.pixels_BMCHW), inputs.pixels_BMCHW.device
        shape = (num_samples, self.horizon, self.flow_width)
        x_BHD = self._first(num_samples, device, noise, deterministic=deterministic)
        chosen_B = torch.zeros(num_samples, dtype=torch.int64, device=device)
        if not deterministic and self.flow.scheme != "flow_noise":
            # Each sample has its own random step.
            chosen_B = (noise.uniform(num_samples, device=device) * self.flow.num_random_steps).long()
        chain, logprobs = [x_BHD], []
        for step, time in enumerate(flow_times(self.flow.num_steps)[:-1].tolist()):
            time_B = torch.full((num_samples,), time, device=device)
            denoised = self.denoise(context, x_BHD, time_B)
            mean_BHD, std_BHD = self._law(x_BHD, denoised, time_B, torch.full_like(chosen_B, step))
            random_B11 = (chosen_B == step)[:, None, None] | (self.flow.scheme == "flow_noise")
            x_BHD = step_mean(x_BHD, denoised.velocity_BHD, time_B, 1.0 / self.flow.num_steps)
            if not deterministic:
                x_BHD = torch.where(random_B11, mean_BHD + std_BHD * noise.normal(*shape, device=device), x_BHD)
            logprob_BKA = self._executed(gaussian_log_prob(x_BHD, mean_BHD, std_BHD))
            logprobs.append(torch.where(random_B11, logprob_BKA, 0.0))
            chain.append(x_BHD)
        return ActionSample(
            action_BKA=self.to_env(x_BHD, inputs),
            logprob_BKA=self._join(logprobs),
            value_B=self.value_of(context),
            record={"chain": torch.stack(chain, dim=1), "step": chosen_B},
        )

    def candidates(self, inputs: PolicyInputs, sampling: Sampling, num: int, noise: Noise = TORCH_NOISE) -> Tensor:
        """As the base class's, each by the ODE from noise of its own; the observation is encoded once."""
        context, device = self.encode(inputs), inputs.pixels_BMCHW.device
        noises = [self._first(len(inputs.pixels_BMCHW), device, noise, deterministic=False) for _ in range(num)]
        return torch.stack([self.chunks_from(context, inputs, noise_BHD) for noise_BHD in noises])

    def chunks_from(self, context: Any, inputs: PolicyInputs, noise_BHD: Tensor) -> Tensor:
        """Environment actions `[B, K, A]` to which the ODE takes this noise; `context` is of `encode(inputs)`."""
        return self.to_env(self.denoise_chain(context, noise_BHD, self.flow.num_steps)[:, -1], inputs)

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
        contexts, device = [self.encode(one) for one in (inputs, plain)], inputs.pixels_BMCHW.device
        x_BHD = self._first(len(inputs.pixels_BMCHW), device, noise, deterministic=deterministic)
        for time in flow_times(self.flow.num_steps)[:-1].tolist():
            time_B = torch.full((len(x_BHD),), time, device=device)
            wanted, other = (self.denoise(context, x_BHD, time_B).velocity_BHD for context in contexts)
            x_BHD = step_mean(x_BHD, other + guidance * (wanted - other), time_B, 1.0 / self.flow.num_steps)
        action_BKA = self.to_env(x_BHD, inputs)
        return ActionSample(action_BKA, torch.zeros_like(action_BKA), torch.zeros(len(x_BHD), device=device))

    def _first(self, num: int, device: torch.device, noise: Noise, *, deterministic: bool) -> Tensor:
        """The noise that B = `num` decisions begin at, `[B, H, D]`."""
        shape = (num, self.horizon, self.flow_width)
        if deterministic and self.flow.eval_noise == "fixed":
            return _fixed_noise(shape[1:], device).expand(shape)
        return noise.normal(*shape, device=device)

    @classmethod
    def draws(cls, model: Mapping[str, Any]) -> Draws:
        # A checkpoint keeps its flow's settings apart, fresh weights are asked for with all in one mapping.
        settings = model.get("flow", model)
        return Draws(tokens=False, deterministic=settings.get("eval_noise", FlowSettings().eval_noise) == "random")

    @classmethod
    def read_as(cls, model: Mapping[str, Any]) -> dict[str, Any]:
        flow = model["flow"]
        return {"head": "flow", **{name: flow[name] for name in ("num_steps", "eval_noise")}}

    def action_selection_text(self, sampling: Sampling, *, deterministic: bool) -> str:
        steps = f"in {self.flow.num_steps} denoising steps"
        if not deterministic:
            return f"actions sampled by {self.flow.scheme} {steps}"
        if self.flow.eval_noise == "random":
            return f"actions {steps} from fresh noise"
        return f"deterministic actions {steps} from fixed noise"

    def evaluate(self, inputs: PolicyInputs, record: Mapping[str, Tensor], sampling: Sampling) -> Evaluation:
        """Score stored chains: one pass of the flow head for Flow-SDE, J for Flow-Noise."""
        _refuse_token_settings(sampling)
        context = self.encode(inputs)
        chain_BJHD, chosen_B = record["chain"], record["step"].long()
        every = self.flow.scheme == "flow_noise"
        steps = [torch.full_like(chosen_B, step) for step in range(self.flow.num_steps)] if every else [chosen_B]
        times_J = constant(tuple(flow_times(self.flow.num_steps).tolist()), torch.float32, chain_BJHD.device)
        row_B = torch.arange(len(chosen_B), device=chain_BJHD.device)
        logprobs, entropies = [], []
        for step_B in steps:
            x_BHD, next_BHD = chain_BJHD[row_B, step_B], chain_BJHD[row_B, step_B + 1]
            time_B = times_J[step_B]
            mean_BHD, std_BHD = self._law(x_BHD, self.denoise(context, x_BHD, time_B), time_B, step_B)
            logprobs.append(self._executed(gaussian_log_prob(next_BHD, mean_BHD, std_BHD)))
            entropies.append(self._executed(gaussian_entropy(std_BHD)))
        return Evaluation(
            logprob_BKA=self._join(logprobs),
            entropy_BKA=self._join(entropies),
            value_B=self.value_of(context),
        )

    @property
    def imitated_steps(self) -> int:
        return self.horizon

    def value(self, inputs: PolicyInputs) -> Tensor:
        return self.value_of(self.encode(inputs))

    def integrate(self, inputs: PolicyInputs, noise_BHD: Tensor, num_steps: int) -> Tensor:
        """The ODE's chain x_0 ... x_J from `noise_BHD`, `[B, J + 1, H, D]`: the published inference."""
        return self.denoise_chain(self.encode(inputs), noise_BHD, num_steps)

    def denoise_chain(self, context: Any, noise_BHD: Tensor, num_steps: int) -> Tensor:
        """`integrate` of an observation that is encoded already."""
        chain = [noise_BHD]
        for time in flow_times(num_steps)[:-1].tolist():
            time_B = torch.full((len(noise_BHD),), time, device=noise_BHD.device)
            velocity_BHD = self.denoise(context, chain[-1], time_B).velocity_BHD
            chain.append(step_mean(chain[-1], velocity_BHD, time_B, 1.0 / num_steps))
        return torch.stack(chain, dim=1)

    def expert_feature(self, context: Any, num: int, device: torch.device) -> Tensor:
        """The mean over the predicted actions' hidden states at t = 1 and x = 0, float32 `[B, E]`, B = `num`.

        A function of the observation alone.
        """
        zero_BHD = torch.zeros(num, self.horizon, self.flow_width, device=device)
        return self.denoise(context, zero_BHD, torch.ones(num, device=device)).hidden_BHE.mean(dim=1)

    def matching_loss(self, inputs: PolicyInputs, action_BHD: Tensor, noise_BHD: Tensor, time_B: Tensor) -> Tensor:
        """Squared error of the velocity, `[B, H, D]`: the loss of imitation. Actions in the network's units."""
        x_BHD, target_BHD = matching_pair(noise_BHD, action_BHD, time_B)
        denoised = self.denoise(self.encode(inputs), x_BHD, time_B)
        return (denoised.velocity_BHD - target_BHD).square()

    # Inside -------------------------------------------------------------------------------------------

    def _law(self, x_BHD: Tensor, denoised: Denoised, time_B: Tensor, step_B: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the next x where step `step_B` is random, `[B, H, D]` each."""
        length = 1.0 / self.flow.num_steps
        if self.flow.scheme == "flow_noise":
            mean_BHD = step_mean(x_BHD, denoised.velocity_BHD, time_B, length)
            return mean_BHD, self.learned_std(denoised.hidden_BHE)
        scheme = flow_cps_law if self.flow.scheme == "flow_cps" else flow_sde_law
        law = scheme(self.flow.num_steps, self.flow.noise_level)
        std_J, pull_J = (constant(tuple(law_J.tolist()), torch.float32, x_BHD.device) for law_J in law)
        mean_BHD = step_mean(x_BHD, denoised.velocity_BHD, time_B, length, pull_J[step_B])
        return mean_BHD, std_J[step_B][:, None, None].expand_as(mean_BHD)

    def _join(self, per_step: list[Tensor]) -> Tensor:
        # Of Flow-SDE's steps at most one is not zero.
        joint = self.flow.joint if self.flow.scheme == "flow_noise" else "sum"
        return join_steps(torch.stack(per_step, dim=1), joint)

    def _executed(self, per_dim_BHD: Tensor) -> Tensor:
        return per_dim_BHD[:, : self.conventions.chunk, : self.conventions.action_dim]


@lru_cache(maxsize=16)
def _fixed_noise(shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(FIXED_NOISE_SEED)).to(device)


def _refuse_token_settings(sampling: Sampling) -> None:
    if sampling != Sampling():
        raise BadValue(
            "temperature, top_k and greedy are for action tokens; a flow policy takes noise_level or noise_std, "
            f"got temperature={sampling.temperature}, top_k={sampling.top_k}, greedy={sampling.greedy}"
        )
