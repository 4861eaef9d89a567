"""The rollout buffer, what is written to it (`Step`) and what is read from it (`Minibatch`).

Shape letters: see `vla_gym.specs`; n of this process's N sub-environments; B decisions of a minibatch, L elements of
a decision (tokens, actions, or 1), U values of a decision (K, or 1), W its K * A tokens, M decisions of an update.

Of a chunk of K steps x A tokens only `executed` steps were run: the others had no effect on the world, so they are
masked and carry no credit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vla_gym.errors import BadValue
from vla_gym.vector.step import EnvStep
from vla_policies.devices import upload
from vla_policies.processing.observations import on_device
from vla_policies.types import ActionSample, Evaluation
from zoo.config.algorithm_configs import STEP_VALUES_LACKING, LogprobLevel

Observation = dict[str, np.ndarray]
"""Arrays, sub-environments first; `instruction` as UTF-8 bytes."""


@dataclass(frozen=True)
class Step:
    """One decision of n sub-environments and its outcome."""

    env_n: np.ndarray
    """Indices of the sub-environments, ascending."""
    obs: Observation
    """Observation before the decision, `[n, ...]`."""
    sample: ActionSample
    outcome: EnvStep
    """Rewards, ends and last observation of the chunk that was run."""
    next_obs: Observation
    """Observation after it; where an episode ended and another began, the first of the latter."""

    @property
    def done_n(self) -> np.ndarray:
        """Bool: the episode ended."""
        return self.outcome.done_n


@dataclass(frozen=True)
class Minibatch:
    """Decisions that are scored at once."""

    obs: dict[str, Tensor]
    """Observation as the policy takes it, batch first."""
    choice: dict[str, Tensor]
    """The record of an `ActionSample`."""
    executed_B: Tensor
    """Simulator steps run of each chunk, int64."""
    old_logprob_BL: Tensor
    """Log-probabilities when the decision was made, float32."""
    advantage_BL: Tensor
    """Advantage of each element; `[B, 1]` where a whole decision shares one."""
    return_BU: Tensor
    """Targets of the critic."""
    old_value_BU: Tensor
    """Values when the decision was made."""
    mask_BL: Tensor
    """Bool: elements that were executed."""
    weight_BL: Tensor
    """Weight of each element, see `zoo.algorithms.losses.weighted_loss`."""
    value_weight_BU: Tensor | None = None
    """Weight of each value, 0 where its step was not executed; None when all count the same."""
    ref_logprob_BW: Tensor | None = None
    """Log-probability of each token under the reference policy, 0 where not executed; None without one."""
    token_mask_BW: Tensor | None = None
    """Bool: tokens that were executed; given with `ref_logprob_BW`."""


_ALWAYS = ("reward_TN", "value_TN", "final_value_TN", "executed_TN", "terminated_TN", "truncated_TN")
"""Filled by `write`; `[T, N]` before the first decision too."""
_SOMETIMES = ("logprob_TNKA", "step_reward_TNK", "step_value_TNK")
"""Filled by `write`, allocated at the first decision; those of steps where steps have rewards and values."""


class ChunkRolloutBuffer:
    """T decisions of N columns (sub-environments; GRPO: rounds x sub-environments), kept on the CPU.

    Memory, allocated once at the first decision and reused: T * N * (bytes of one observation + bytes of
    one record + 4 * K * A + 34). One 256 x 256 camera is 196,608 bytes, so 64 decisions of 64 sub-environments are
    0.8 GB with one camera and 1.6 GB with two; records (int64 tokens) and log-probabilities add
    12 * K * A bytes, 0.7 kB for eight steps of seven dims. Observations keep their dtype.
    """

    def __init__(
        self, buffer_size: int, *unread: object, n_envs: int = 1, rollouts: int = 1, **also_unread: object
    ) -> None:
        """Take T, the sub-environments and the rounds of a rollout.

        Stable-Baselines3 gives spaces, device, gamma and lambda, too.
        """
        self.buffer_size = buffer_size
        self.columns = n_envs * rollouts
        self.obs: dict[str, Tensor] = {}
        self.record: dict[str, Tensor] = {}
        self.logprob_TNKA = torch.zeros(buffer_size, self.columns, 0, 0)
        self.ref_logprob_TNKA: Tensor | None = None
        self.behaviour_logprob_TNKA: Tensor | None = None
        """Log-probabilities under the weights that decided, where those that the update begins with replace them.

        Minibatches then weight advantages by `importance_weight`.
        """
        self.step_reward_TNK: Tensor | None = None
        self.step_value_TNK: Tensor | None = None
        self.step_advantage_TNK: Tensor | None = None
        self.step_return_TNK: Tensor | None = None
        self.value_scale_TN: Tensor | None = None
        shape = (buffer_size, self.columns)
        self.reward_TN = torch.zeros(shape)
        self.value_TN = torch.zeros(shape)
        self.final_value_TN = torch.zeros(shape)
        self.advantage_TN = torch.zeros(shape)
        self.return_TN = torch.zeros(shape)
        self.element_scale_TN = torch.zeros(shape)
        self.executed_TN = torch.zeros(shape, dtype=torch.int64)
        self.terminated_TN = torch.zeros(shape, dtype=torch.bool)
        self.truncated_TN = torch.zeros(shape, dtype=torch.bool)

    def reset(self) -> None:
        """Clear the rollout; memory is kept."""
        self.behaviour_logprob_TNKA = None
        for name in (*_ALWAYS, "advantage_TN", "return_TN", "element_scale_TN"):
            getattr(self, name).zero_()

    def write(
        self,
        row: int,
        columns: np.ndarray,
        step: Step,
        *,
        bootstrapped_n: np.ndarray | None = None,
        final_value_n: Tensor | None = None,
        step_reward_nK: np.ndarray | None = None,
        step_value_nK: Tensor | None = None,
    ) -> None:
        """Write a step of `columns` (integers `[n]`) to row `row` (0 .. T-1).

        Args:
            bootstrapped_n: bool, the episode ended here and its return goes on with `final_value_n`; None = none did.
            final_value_n: values of the observations in which those episodes ended, float32; unread elsewhere.
            step_reward_nK: reward of every simulator step, zero where not executed; None where a decision has one
                advantage.
            step_value_nK: value of every simulator step, float32; None where a decision has one.
        """
        sample, outcome = step.sample, step.outcome
        given: dict[str, np.ndarray | Tensor | None] = {
            "logprob_TNKA": sample.logprob_BKA.float(),
            "value_TN": sample.value_B.float(),
            "final_value_TN": final_value_n,
            "reward_TN": outcome.reward_n.astype(np.float32),
            "executed_TN": outcome.executed_n,
            "terminated_TN": step.done_n if bootstrapped_n is None else step.done_n & ~bootstrapped_n,
            "truncated_TN": bootstrapped_n,
            "step_reward_TNK": step_reward_nK,
            "step_value_TNK": None if step_value_nK is None else step_value_nK.float(),
            **{f"obs/{key}": value for key, value in step.obs.items()},
            **{f"record/{key}": value for key, value in sample.record.items()},
        }
        filled = {name: torch.as_tensor(value).detach().cpu() for name, value in given.items() if value is not None}
        self._write(slice(row, row + 1), torch.from_numpy(columns), {name: one[None] for name, one in filled.items()})

    def write_columns(self, columns: Tensor, collected: Mapping[str, Tensor]) -> None:
        """Write `collected` of another buffer with T rows, `[T, n, ...]` each, to `columns` (int64 `[n]`)."""
        self._write(slice(None), columns, collected)

    def collected(self) -> dict[str, Tensor]:
        """The tensors that `write` fills, `[T, N, ...]`, by name: also `obs/<key>` and `record/<key>`."""
        named = {name: getattr(self, name) for name in (*_SOMETIMES, *_ALWAYS)}
        named |= {f"obs/{key}": tensor for key, tensor in self.obs.items()}
        named |= {f"record/{key}": tensor for key, tensor in self.record.items()}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def _write(self, rows: slice, columns: Tensor, values: Mapping[str, Tensor]) -> None:
        """Write tensors `[t, n, ...]`, named as in `collected`; the first ones give their shapes."""
        if not self.obs:
            for name, value in values.items():
                if name not in _ALWAYS:
                    kind, _, key = name.partition("/")
                    holder = {"obs": self.obs, "record": self.record}.get(kind, vars(self))
                    shape = (self.buffer_size, self.columns, *value.shape[2:])
                    holder[key or name] = torch.zeros(shape, dtype=value.dtype)
        own = self.collected()
        for name, value in values.items():
            own[name][rows, columns] = value

    def write_advantages(self, advantage: Tensor) -> None:
        """Write advantages, `[T, N]` or of each step `[T, N, K]`; zero where they do not count."""
        if advantage.ndim == 2:
            self.advantage_TN.copy_(advantage)
        else:
            self.step_advantage_TNK = advantage

    def executed_steps(self) -> Tensor:
        """Bool `[T, N, K]`: steps that were run."""
        chunk = self.logprob_TNKA.shape[2]
        return executed_mask(self.executed_TN.flatten(), chunk).unflatten(0, self.executed_TN.shape)

    def elements_TN(self, level: LogprobLevel) -> Tensor:
        """Unmasked elements of every decision at `level`, int64 `[T, N]`."""
        return elements_per_decision(self.executed_TN, self.logprob_TNKA.shape[3], level)

    def selected(self) -> Tensor:
        """Bool `[T, N]`: decisions that the update uses."""
        return self.element_scale_TN > 0

    def selected_indices(self) -> Tensor:
        """Flat indices (row * N + column) of the `selected` decisions, int64 `[M]`."""
        return torch.nonzero(self.selected().flatten())[:, 0]

    def values_and_returns(self) -> tuple[Tensor, Tensor]:
        """The values that were run, of decisions or of steps, and their targets, flat."""
        if self.step_value_TNK is not None and self.step_return_TNK is not None:
            valid_TNK = self.executed_steps()
            return self.step_value_TNK[valid_TNK], self.step_return_TNK[valid_TNK]
        valid_TN = self.executed_TN > 0
        return self.value_TN[valid_TN], self.return_TN[valid_TN]

    def minibatch(self, index_B: Tensor, level: LogprobLevel, device: torch.device) -> Minibatch:
        """The decisions at flat indices `index_B`, on `device`, but for what is read on the CPU."""

        def take(whole: Tensor) -> Tensor:
            return upload(whole.flatten(0, 1)[index_B], device)

        executed_B = take(self.executed_TN)
        old_logprob_BL, mask_BL = to_level(take(self.logprob_TNKA), executed_B, level)
        advantage_BL = take(self.advantage_TN)[:, None]
        if self.step_advantage_TNK is not None:
            assert level in ("token", "action"), "a chunk's ratio cannot take the advantages of its steps"
            repeats = self.logprob_TNKA.shape[3] if level == "token" else 1
            advantage_BL = take(self.step_advantage_TNK).repeat_interleave(repeats, dim=1)
        if self.behaviour_logprob_TNKA is not None:
            behaviour_BL, _ = to_level(take(self.behaviour_logprob_TNKA), executed_B, level)
            advantage_BL = advantage_BL * importance_weight(old_logprob_BL, behaviour_BL)
        return_BU, old_value_BU = take(self.return_TN)[:, None], take(self.value_TN)[:, None]
        value_weight_BU = None if self.value_scale_TN is None else take(self.value_scale_TN)[:, None]
        if self.step_value_TNK is not None and self.step_return_TNK is not None:
            assert value_weight_BU is not None, "the values of steps that were not run must not count"
            return_BU, old_value_BU = take(self.step_return_TNK), take(self.step_value_TNK)
            value_weight_BU = value_weight_BU * executed_mask(executed_B, old_value_BU.shape[1])
        ref_logprob_BW = token_mask_BW = None
        if self.ref_logprob_TNKA is not None:
            ref_logprob_BW, token_mask_BW = to_level(take(self.ref_logprob_TNKA), executed_B, "token")
        return Minibatch(
            obs=on_device({key: whole.flatten(0, 1)[index_B] for key, whole in self.obs.items()}, device),
            choice=on_device({key: whole.flatten(0, 1)[index_B] for key, whole in self.record.items()}, device),
            executed_B=executed_B,
            old_logprob_BL=old_logprob_BL,
            advantage_BL=advantage_BL,
            return_BU=return_BU,
            old_value_BU=old_value_BU,
            mask_BL=mask_BL,
            weight_BL=take(self.element_scale_TN)[:, None] * mask_BL,
            value_weight_BU=value_weight_BU,
            ref_logprob_BW=ref_logprob_BW,
            token_mask_BW=token_mask_BW,
        )


def executed_mask(executed_B: Tensor, chunk: int) -> Tensor:
    """Bool `[B, K]`: step k was run, for `executed_B` (integers, 0 .. K) steps run of each chunk."""
    return torch.arange(chunk, device=executed_B.device) < executed_B[:, None]


def to_level(token_BKA: Tensor, executed_B: Tensor, level: LogprobLevel) -> tuple[Tensor, Tensor]:
    """Token numbers (log-probabilities, entropies) summed up to `level`, with their mask.

    Returns float `[B, L]` and bool `[B, L]`, L = K * A, K or 1. Elements that were not executed are zero and masked;
    so is a chunk of which nothing was executed. "sequence" is the mean over the executed tokens of the chunk: its ratio
    is their geometric mean (Zheng et al. 2025, GSPO, arXiv:2507.18071, eq. 7).
    """
    mask_BK = executed_mask(executed_B, token_BKA.shape[1])
    kept_BKA = token_BKA.masked_fill(~mask_BK[..., None], 0.0)
    if level == "token":
        return kept_BKA.flatten(1), mask_BK.repeat_interleave(token_BKA.shape[2], dim=1)
    if level == "action":
        return kept_BKA.sum(dim=2), mask_BK
    sum_B1, mask_B1 = kept_BKA.sum(dim=(1, 2))[:, None], mask_BK.any(dim=1, keepdim=True)
    if level == "chunk":
        return sum_B1, mask_B1
    num_tokens_B1 = (mask_BK.sum(dim=1, keepdim=True) * token_BKA.shape[2]).clamp(min=1)
    return sum_B1 / num_tokens_B1, mask_B1


def elements_per_decision(executed: Tensor, action_dim: int, level: LogprobLevel) -> Tensor:
    """Number of a decision's unmasked elements after `to_level`; shape and dtype of `executed`."""
    if level == "token":
        return executed * action_dim
    return executed if level == "action" else (executed > 0).to(executed.dtype)


def step_values(result: ActionSample | Evaluation, chunk: int) -> Tensor:
    """Values of every step of the chunk, `[B, K]`; of a chunk of one step that is the state's value."""
    if result.value_BK is not None:
        return result.value_BK
    if chunk == 1:
        return result.value_B[:, None]
    raise BadValue(f"{STEP_VALUES_LACKING} (chunk {chunk})")


WEIGHT_CAP = 2.0
"""Elements whose `importance_weight` is above it are left out: RLinf's default for OpenVLA's asynchronous PPO."""


def importance_weight(proximal_logprob_BL: Tensor, behaviour_logprob_BL: Tensor) -> Tensor:
    """Return w = pi_proximal / pi_behaviour of each element, `[B, L]`, without gradient; 0 above `WEIGHT_CAP`.

    For decisions of older weights (behaviour) the policy is kept near the weights at the update's beginning (proximal)
    while the expectation is corrected (Hilton, Cobbe and Schulman 2022, "Batch size-invariance for policy
    optimization", arXiv:2110.00641, equation 3). As w > 0, that is PPO's loss with advantage w A.
    """
    weight_BL = (proximal_logprob_BL - behaviour_logprob_BL).detach().exp()
    return torch.where(weight_BL > WEIGHT_CAP, torch.zeros_like(weight_BL), weight_BL)
