"""Advantages: pure estimators that check their shapes, and what they write into the rollout buffer.

Shape letters: see `vla_gym.specs`; P start states (groups), G members of a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zoo.config.algorithm_configs import GroupAdvantage, GroupLossWeight, LogprobLevel
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.buffer import ChunkRolloutBuffer
from zoo.rollout.gae import gae, step_gae
from zoo.rollout.log_prob_levels import constant_scale, elements_per_decision, even_scale, trajectory_scale

GROUP_EPS = 1e-6
"""Added to a group's standard deviation, as published for GRPO."""
NORMALIZE_EPS = 1e-8
"""Added to the rollout's standard deviation, as in Stable-Baselines3."""


def discounted_sum(reward_TN: Tensor, gamma: float) -> Tensor:
    """`[T, N]` -> `[N]`: sum over t of gamma^t r_t, the return of an episode from its first decision."""
    discount_T = gamma ** torch.arange(len(reward_TN), device=reward_TN.device, dtype=reward_TN.dtype)
    return (discount_T[:, None] * reward_TN).sum(dim=0)


def group_advantage(score_PG: Tensor, estimator: GroupAdvantage = "group_std") -> Tensor:
    """`[P, G]` -> `[P, G]`: scores compared with those of their group; a zero-variance group gets exactly zero.

    "group_std": (score - group mean) / (unbiased group standard deviation + eps). Shao et al. 2024 (GRPO,
    arXiv:2402.03300, outcome supervision).
    "centred": score - group mean. Liu et al. 2025 (Dr. GRPO, arXiv:2503.20783): the division lets starts that are
    nearly always or nearly never solved weigh most.
    "rloo": score - mean of the other G - 1, which is G / (G - 1) times "centred". Kool et al. 2019; Ahmadian et al.
    2024 (RLOO, arXiv:2402.14740, eq. 8).
    """
    if score_PG.ndim != 2 or score_PG.shape[1] < 2:
        raise ValueError(f"score_PG must be [starts, group >= 2], got {tuple(score_PG.shape)}")
    centred_PG = score_PG - score_PG.mean(dim=1, keepdim=True)
    # The mean of equal floats may differ from them by a rounding error, which the division would blow up.
    alike_P1 = score_PG.amax(dim=1, keepdim=True) == score_PG.amin(dim=1, keepdim=True)
    if estimator == "centred":
        advantage_PG = centred_PG
    elif estimator == "rloo":
        advantage_PG = centred_PG * (score_PG.shape[1] / (score_PG.shape[1] - 1))
    else:
        advantage_PG = centred_PG / (score_PG.std(dim=1, keepdim=True, unbiased=True) + GROUP_EPS)
    return advantage_PG.masked_fill(alike_P1, 0.0)


def groups_with_signal(score_PG: Tensor, bounds: tuple[float, float] | None = None) -> Tensor:
    """Bool `[P]`: groups whose scores differ; the advantages of zero-variance groups are all zero.

    With `bounds` = (low, high) a group must also have low <= mean score <= high (published for LIBERO: success rate
    0.1 .. 0.9, that is any mixed group of eight).
    """
    if score_PG.ndim != 2:
        raise ValueError(f"score_PG must be [starts, group], got {tuple(score_PG.shape)}")
    signal_P = score_PG.amax(dim=1) > score_PG.amin(dim=1)
    if bounds is not None:
        mean_P = score_PG.mean(dim=1)
        signal_P = signal_P & (mean_P >= bounds[0]) & (mean_P <= bounds[1])
    return signal_P


def normalize(advantage: Tensor, mean: float | Tensor, std: float | Tensor, eps: float = NORMALIZE_EPS) -> Tensor:
    """(advantage - mean) / (std + eps), any shape; mean and std are those of every rank's valid entries."""
    return (advantage - mean) / (std + eps)


@dataclass(frozen=True, kw_only=True)
class Discount:
    """Discount and lambda of the estimate, per decision, or per simulator step where steps are credited."""

    gamma: float
    gae_lambda: float


def _common_arguments(buffer: ChunkRolloutBuffer, last_value_N: Tensor, discount: Discount) -> dict[str, Any]:
    """Keyword arguments that `gae` and `step_gae` share."""
    ends = {name: getattr(buffer, name) for name in ("terminated_TN", "truncated_TN", "final_value_TN")}
    return {**ends, "last_value_N": last_value_N, "gamma": discount.gamma, "gae_lambda": discount.gae_lambda}


def decision_advantages(buffer: ChunkRolloutBuffer, last_value_N: Tensor, discount: Discount) -> tuple[Tensor, Tensor]:
    """Advantages `[T, N]` and which of them count, bool; fills the critic's targets."""
    common = _common_arguments(buffer, last_value_N, discount)
    advantage_TN = gae(buffer.reward_TN, buffer.value_TN, **common)
    buffer.return_TN.copy_(advantage_TN + buffer.value_TN)
    return advantage_TN, buffer.executed_TN > 0


def step_advantages(buffer: ChunkRolloutBuffer, last_value_N: Tensor, discount: Discount) -> tuple[Tensor, Tensor]:
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
        lambda_inside=None if own_values else 1.0,
        **_common_arguments(buffer, last_value_N, discount),
    )
    buffer.return_TN.copy_(advantage_TNK[..., 0] + buffer.value_TN)
    if own_values:
        buffer.step_return_TNK = advantage_TNK + value_TNK
    return advantage_TNK, buffer.executed_steps()


def write_advantages(buffer: ChunkRolloutBuffer, advantage: Tensor) -> None:
    """Write advantages (`[T, N]` or `[T, N, K]`, zero where they do not count) into the buffer."""
    if advantage.ndim == 2:
        buffer.advantage_TN.copy_(advantage)
    else:
        buffer.step_advantage_TNK = advantage


def write_even_weights(buffer: ChunkRolloutBuffer, level: LogprobLevel, process_group: ProcessGroup) -> None:
    """Write the weights with which all elements count the same, and all values."""
    valid_TN = buffer.executed_TN > 0
    buffer.element_scale_TN[valid_TN] = even_scale(buffer.elements_TN(level)[valid_TN], process_group.all_reduce_sum)
    if buffer.step_return_TNK is not None:
        scale = even_scale(buffer.executed_TN[valid_TN], process_group.all_reduce_sum)
        buffer.value_scale_TN = torch.full_like(buffer.element_scale_TN, scale)


def write_trajectory_weights(
    buffer: ChunkRolloutBuffer, level: LogprobLevel, process_group: ProcessGroup, *, masked: bool
) -> None:
    """Write the weights with which all episodes count the same, for the policy and for the critic.

    A part of an episode that a rollout begins or ends with counts as one. With `masked` minibatches the weights are for
    all places of the rollout: of one episode to a column, those that nothing was run in are its masked end.
    """
    valid_TN = buffer.executed_TN > 0
    name_M = episodes_TN(buffer)[valid_TN]
    places = None
    if masked:
        num_episodes = process_group.all_reduce_sum(torch.tensor(len(name_M.unique())))
        places = (valid_TN.numel() * process_group.size, int(num_episodes))
    num_values_TN = (buffer.executed_TN > 0).long() if buffer.step_return_TNK is None else buffer.executed_TN
    buffer.value_scale_TN = torch.zeros_like(buffer.element_scale_TN)
    for scale_TN, elements_TN in (
        (buffer.element_scale_TN, buffer.elements_TN(level)),
        (buffer.value_scale_TN, num_values_TN),
    ):
        scale_TN[valid_TN] = trajectory_scale(
            elements_TN[valid_TN], name_M, process_group.all_reduce_sum, places=places
        )


def write_group_weights(
    buffer: ChunkRolloutBuffer,
    selected_TN: Tensor,
    level: LogprobLevel,
    loss_weight: GroupLossWeight,
    process_group: ProcessGroup,
    *,
    masked: bool,
) -> None:
    """Write the weights of the selected decisions (bool `[T, N]`), of one episode to a column.

    "trajectory": every episode counts the same. "token": every element does, so long episodes count more. "constant":
    every element does, and an episode counts by its share of the elements of one that takes all T whole chunks. With
    `masked` minibatches ("trajectory" alone) the weights are for all places of the rollout.
    """
    elements_M = buffer.elements_TN(level)[selected_TN]
    column_M = torch.arange(buffer.columns).expand(buffer.buffer_size, -1)[selected_TN]
    total = process_group.all_reduce_sum
    scale: Tensor | float
    if loss_weight == "token":
        scale = even_scale(elements_M, total)
    elif loss_weight == "constant":
        chunk, action_dim = buffer.logprob_TNKA.shape[2:]
        per_chunk = int(elements_per_decision(torch.tensor(chunk), action_dim, level))
        scale = constant_scale(elements_M, column_M, buffer.buffer_size * per_chunk, total)
    else:
        num_columns = buffer.columns * process_group.size
        places = (buffer.buffer_size * num_columns, num_columns) if masked else None
        scale = trajectory_scale(elements_M, column_M, total, places=places)
    buffer.element_scale_TN[selected_TN] = scale


def episodes_TN(buffer: ChunkRolloutBuffer) -> Tensor:
    """A name of the episode that each decision belongs to, of this rank's, int64 `[T, N]`."""
    ended_TN = (buffer.terminated_TN | buffer.truncated_TN).long()
    before_TN = ended_TN.cumsum(dim=0) - ended_TN
    return before_TN + (buffer.buffer_size + 1) * torch.arange(buffer.columns)
