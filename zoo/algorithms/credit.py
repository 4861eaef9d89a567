"""Who is credited: advantages of decisions or of their single steps, written into the rollout buffer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vla_gym.errors import BadValue, unknown_name
from zoo.algorithms.advantages import gae, step_gae
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.buffer import ChunkRolloutBuffer
from zoo.rollout.log_prob_levels import CreditLevel, LogprobLevel, even_scale

CREDIT_LEVELS: tuple[CreditLevel, ...] = ("chunk", "action")


@dataclass(frozen=True, kw_only=True)
class Discount:
    """How far credit reaches; counts decisions, or simulator steps where steps are credited."""

    gamma: float
    """Discount."""
    gae_lambda: float
    """Lambda of the generalised advantage estimate."""


def check_levels(reward: str, value: str, logprob: str) -> None:
    """Raise for levels that do not exist or do not go together."""
    for name, level in (("reward_level", reward), ("value_level", value)):
        if level not in CREDIT_LEVELS:
            raise unknown_name(name, str(level), CREDIT_LEVELS)
    if value == "action" and reward == "chunk":
        raise BadValue(
            "value_level='action' gives every step a value, which reward_level='chunk' would leave untrained but "
            "for the first; set reward_level='action' too"
        )
    if reward == "action" and logprob == "chunk":
        raise BadValue(
            "reward_level='action' gives the steps of a chunk advantages of their own, but logprob_level='chunk' has "
            "one ratio for all of them; set logprob_level to 'action' or 'token'"
        )


def credit_decisions(
    buffer: ChunkRolloutBuffer, last_value_N: Tensor, discount: Discount, process_group: ProcessGroup
) -> tuple[Tensor, Tensor]:
    """Advantages `[T, N]` and which of them count, bool; fills the critic's targets."""
    advantage_TN = gae(
        buffer.reward_TN,
        buffer.value_TN,
        terminated_TN=buffer.terminated_TN,
        truncated_TN=buffer.truncated_TN,
        final_value_TN=buffer.final_value_TN,
        last_value_N=last_value_N,
        gamma=discount.gamma,
        gae_lambda=discount.gae_lambda,
    )
    buffer.return_TN.copy_(advantage_TN + buffer.value_TN)
    return advantage_TN, buffer.executed_TN > 0


def credit_steps(
    buffer: ChunkRolloutBuffer, last_value_N: Tensor, discount: Discount, process_group: ProcessGroup
) -> tuple[Tensor, Tensor]:
    """Advantages `[T, N, K]` and which of them count, bool; fills the critic's targets."""
    assert buffer.step_reward_TNK is not None
    value_TNK = buffer.step_value_TNK
    own_values = value_TNK is not None
    if value_TNK is None:
        value_TNK = buffer.value_TN[..., None].expand_as(buffer.step_reward_TNK)
    advantage_TNK = step_gae(
        buffer.step_reward_TNK,
        value_TNK,
        executed_TN=buffer.executed_TN,
        terminated_TN=buffer.terminated_TN,
        truncated_TN=buffer.truncated_TN,
        final_value_TN=buffer.final_value_TN,
        last_value_N=last_value_N,
        gamma=discount.gamma,
        gae_lambda=discount.gae_lambda,
        lambda_inside=None if own_values else 1.0,
    )
    buffer.return_TN.copy_(advantage_TNK[..., 0] + buffer.value_TN)
    if own_values:
        buffer.step_return_TNK = advantage_TNK + value_TNK
        buffer.value_scale = even_scale(
            buffer.executed_TN[buffer.executed_TN > 0], process_group.all_reduce_sum
        )
    return advantage_TNK, buffer.executed_steps()


def write_advantages(
    buffer: ChunkRolloutBuffer, advantage: Tensor, level: LogprobLevel, process_group: ProcessGroup
) -> None:
    """Put advantages (`[T, N]` or `[T, N, K]`, zero where they do not count) and weights into the buffer."""
    if advantage.ndim == 2:
        buffer.advantage_TN.copy_(advantage)
    else:
        buffer.step_advantage_TNK = advantage
    valid_TN = buffer.executed_TN > 0
    buffer.element_scale_TN[valid_TN] = even_scale(
        buffer.elements_TN(level)[valid_TN], process_group.all_reduce_sum
    )


def chosen(values: Tensor, mask: Tensor) -> Tensor:
    """`values` where `mask`, else zero."""
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype))
