"""The mathematics of flow policies: times, denoising steps, Gaussian log-probabilities. Pure functions.

Time runs from 1 (noise) to 0 (action) over J steps. A network gives the velocity v = noise - action at
(x, t); then `x - t v` estimates the action and `x + (1 - t) v` the noise. One step draws the next x from
N(mean, std^2): std = 0 is the plain ODE (Euler), a stochastic step is a decision whose log-probability
reinforcement learning can use. Sources: pi0 (arXiv:2410.24164) for the flow; Flow-SDE and Flow-Noise as
published for pi0 and pi0.5 (pi_RL, arXiv:2510.25889).

Shape letters beside those of `vla_gym.specs`: B samples, J denoising steps, H actions the flow predicts
(the first K of them are executed), D numbers per predicted action (the first A are the arm's).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vla_gym.errors import BadValue

Joint = Literal["sum", "mean"]

MOST_NOISE = 1000
"""Largest `noise_level`; an action is of order 1."""


@dataclass(frozen=True, kw_only=True)
class FlowSettings:
    """Sampling of a flow policy, and log-probabilities of its actions. A trained policy must be evaluated
    with the `num_steps` of its training."""

    num_steps: int = 4
    """J, denoising steps of a decision."""
    scheme: Literal["flow_sde", "flow_cps", "flow_noise"] = "flow_sde"
    """"flow_sde": one step, drawn per sample, adds noise of a fixed size, the others follow the ODE; "flow_cps": the
    same with other sizes, see `flow_cps_law`; "flow_noise": every step adds noise whose size a small network learns."""
    noise_level: float = 0.5
    """a of Flow-SDE, the standard deviation of its first step (0.3 to 0.5 are published), or of Flow-CPS, below 1."""
    noise_std: tuple[float, float] = (0.08, 0.16)
    """Smallest and largest standard deviation Flow-Noise may learn."""
    joint: Joint = "sum"
    """Log-probability of the J steps of Flow-Noise: their "sum" (the true joint density), or "mean", the
    sum divided by J + 1 (the published choice, which counts the initial noise as a term: a ratio is then
    the (J + 1)-th root of the true one, and a clip range that much looser)."""
    last_step_random: bool = True
    """Whether Flow-SDE may choose the last step, the one with the least noise (Flow-CPS never does)."""
    eval_noise: Literal["fixed", "random"] = "fixed"
    """Start of a decision that is not sampled: "fixed", one noise for all observations, so that equal observations
    give equal actions; "random", fresh noise for every decision, as published programs of pi0, pi0.5 and SmolVLA."""

    def __post_init__(self) -> None:
        if self.num_random_steps < 1:
            raise BadValue(
                f"num_steps must be >= 1, and >= 2 where the last step may not be the random one, got {self.num_steps}"
            )
        low, high = self.noise_std
        most = 1 if self.scheme == "flow_cps" else MOST_NOISE
        if not 0 < self.noise_level <= most or not 0 < low < high:
            raise BadValue(
                f"noise_level must be > 0 and at most {most}, noise_std two rising numbers > 0, got "
                f"{self.noise_level} and {list(self.noise_std)}"
            )

    @property
    def num_random_steps(self) -> int:
        """Number of steps, from the first on, among which the one random step is drawn."""
        return self.num_steps if self.last_step_random and self.scheme != "flow_cps" else self.num_steps - 1


def flow_times(num_steps: int) -> Tensor:
    """t_0 = 1, ..., t_J = 0 in equal steps, float32 `[J + 1]`."""
    return (1.0 - torch.arange(num_steps + 1, dtype=torch.float64) / num_steps).float()


def flow_sde_law(num_steps: int, noise_level: float) -> tuple[Tensor, Tensor]:
    """Standard deviation and pull of every Flow-SDE step, float64 `[J]` each.

    sigma_j = a sqrt(t_j / (1 - t_j)), with t_1 in the place of t_0 in 1 - t_0; the step's standard
    deviation is sigma_j sqrt(1 / J), so the first one is a. The pull sigma_j^2 (1 / J) / (2 t_j) comes off
    the weight of the noise estimate, which keeps x on the marginal distribution of the ODE.
    """
    time_J = 1.0 - torch.arange(num_steps, dtype=torch.float64) / num_steps
    variance_J = noise_level**2 * time_J / (1.0 - time_J).clamp(min=1.0 / num_steps) / num_steps
    return variance_J.sqrt(), variance_J / (2.0 * time_J)


def flow_cps_law(num_steps: int, noise_level: float) -> tuple[Tensor, Tensor]:
    """The same of coefficients-preserving sampling: noise estimate and fresh noise get the weights
    (t - 1 / J) cos(pi a / 2) and (t - 1 / J) sin(pi a / 2); the last step is left without noise."""
    next_J = 1.0 - torch.arange(1, num_steps + 1, dtype=torch.float64) / num_steps
    angle = 0.5 * math.pi * noise_level
    return next_J * math.sin(angle), next_J * (1.0 - math.cos(angle))


def step_mean(x_BHD: Tensor, velocity_BHD: Tensor, time_B: Tensor, step: float, pull_B: Tensor | None = None) -> Tensor:
    """Mean of the next x, `[B, H, D]`, after a step of length `step` from `time_B`.

    Without `pull_B` it is Euler's `x - step v`, which equals (1 - t + step) x0 + (t - step) x1 for the
    estimates x0 of the action and x1 of the noise. With it (see `flow_sde_law`; zero for samples on the ODE)
    the weight of x1 is smaller by `pull_B`.
    """
    mean_BHD = x_BHD - step * velocity_BHD
    if pull_B is None:
        return mean_BHD
    noise_BHD = x_BHD + (1.0 - time_B)[:, None, None] * velocity_BHD
    return mean_BHD - pull_B[:, None, None] * noise_BHD


def gaussian_log_prob(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Log-density of every number of `x` under N(mean, std^2), float32, shapes broadcast."""
    std = std.float()
    return -0.5 * ((x.float() - mean.float()) / std).square() - std.log() - 0.5 * math.log(2.0 * math.pi)


def gaussian_entropy(std: Tensor) -> Tensor:
    """Entropy of N(., std^2), nats, float32."""
    return std.float().log() + 0.5 * math.log(2.0 * math.pi * math.e)


def bounded_std(raw: Tensor, low: float, high: float) -> Tensor:
    """A network's unbounded output to a standard deviation in [low, high]: tanh between the log-variances."""
    middle = 0.5 * (math.log(low) + math.log(high))
    half_range = 0.5 * (math.log(high) - math.log(low))
    return torch.exp(middle + half_range * torch.tanh(raw.float()))


def join_steps(per_step_BJ: Tensor, joint: Joint) -> Tensor:
    """Log-probabilities (or entropies) `[B, J, ...]` of the steps to one `[B, ...]`; see `FlowSettings.joint`."""
    total = per_step_BJ.sum(dim=1)
    return total if joint == "sum" else total / (per_step_BJ.shape[1] + 1)


def time_embedding(time_B: Tensor, width: int, min_period: float = 4e-3, max_period: float = 4.0) -> Tensor:
    """Sines, then cosines, of 2 pi t over `width / 2` periods in geometric steps, float64 `[B, width]`.

    In float64 because angles reach 1571 rad: float32 alone moves pi0's actions by 1e-4.
    """
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64, device=time_B.device)
    period = min_period * (max_period / min_period) ** fraction
    angle = (2.0 * math.pi / period) * time_B.double()[:, None]
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def matching_pair(noise_BHD: Tensor, action_BHD: Tensor, time_B: Tensor) -> tuple[Tensor, Tensor]:
    """Input and target of flow matching: x_t = t noise + (1 - t) action, and its velocity."""
    time_B11 = time_B[:, None, None]
    return time_B11 * noise_BHD + (1.0 - time_B11) * action_BHD, noise_BHD - action_BHD


def matching_times(uniform_B: Tensor) -> Tensor:
    """Training times of pi0, 0.999 Beta(1.5, 1) + 0.001, float32 `[B]`, from numbers in [0, 1): u^(1 / 1.5) is
    Beta's quantile."""
    return (0.999 * uniform_B ** (1.0 / 1.5) + 0.001).float()


def gaussian_velocity(x_BHD: Tensor, time_B: Tensor, action_std: float) -> Tensor:
    """The exact velocity when actions are N(0, action_std^2) for all observations, `[B, H, D]`.

    E[noise - action | x] = x (t - (1 - t) s^2) / (t^2 + (1 - t)^2 s^2): fresh weights that add to it begin
    with actions of a chosen spread instead of bare noise.
    """
    time_B11 = time_B[:, None, None]
    rest_B11 = (1.0 - time_B11) * action_std**2
    return x_BHD * (time_B11 - rest_B11) / (time_B11.square() + (1.0 - time_B11) * rest_B11)
