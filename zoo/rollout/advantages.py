"""Advantages: pure estimators, and the loss weights of the rollout buffer.

The policy loss of a batch is `zoo.algorithms.losses.weighted_loss`; the weights alone say what counts how much.

Shape letters: see `vla_gym.specs`; P start states (groups), G members of a group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zoo.config.algorithm_configs import GroupAdvantage, GroupLossWeight, LogprobLevel, LossWeight
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.buffer import ChunkRolloutBuffer, elements_per_decision

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
    signal_P = score_PG.amax(dim=1) > score_PG.amin(dim=1)
    if bounds is not None:
        mean_P = score_PG.mean(dim=1)
        signal_P = signal_P & (mean_P >= bounds[0]) & (mean_P <= bounds[1])
    return signal_P


def gae(
    reward_TN: Tensor,
    value_TN: Tensor,
    *,
    terminated_TN: Tensor,
    truncated_TN: Tensor,
    final_value_TN: Tensor,
    last_value_N: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimate `[T, N]` (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

    delta_t = r_t + gamma * V_next - V_t and A_t = delta_t + gamma * lambda * A_{t+1}, where row t + 1 may
    belong to the next episode (same-step resets): whenever decision t ended its episode nothing of row
    t + 1 is used. V_next is then 0 if it was terminated, `final_value_TN` (the value of the observation
    the episode really ended in) if it was only cut off by time, so a time limit is no failure.

    gamma counts decisions, not simulator steps. Args: `reward_TN`, `value_TN`, `final_value_TN` float
    `[T, N]` (the last is read where truncated only), `terminated_TN`, `truncated_TN` bool `[T, N]`
    (terminated wins where both hold), `last_value_N` value of the observations after the last row.
    """
    done_TN = terminated_TN | truncated_TN
    next_value_TN = _next_values(value_TN, terminated_TN, truncated_TN, final_value_TN, last_value_N)
    delta_TN = reward_TN + gamma * next_value_TN - value_TN
    advantage_TN = torch.empty_like(delta_TN)
    running_N = torch.zeros_like(last_value_N)
    for t in reversed(range(len(delta_TN))):
        running_N = delta_TN[t] + gamma * gae_lambda * torch.where(done_TN[t], 0.0, running_N)
        advantage_TN[t] = running_N
    return advantage_TN


def step_gae(
    reward_TNK: Tensor,
    value_TNK: Tensor,
    *,
    executed_TN: Tensor,
    terminated_TN: Tensor,
    truncated_TN: Tensor,
    final_value_TN: Tensor,
    last_value_N: Tensor,
    gamma: float,
    gae_lambda: float,
    lambda_inside: float | None = None,
) -> Tensor:
    """`gae` with every executed simulator step as a row of its own, `[T, N, K]`, zero where not executed.

    gamma and lambda count simulator steps. `lambda_inside` replaces lambda between two steps of one chunk: with 1 and
    one value repeated over its chunk, the values inside cancel, and step k's advantage is the chunk's rewards from k
    on + the return after the chunk - the chunk's value: credit per step from one value per chunk. A chunk of which
    nothing was run ends the sum.
    """
    inside = gae_lambda if lambda_inside is None else lambda_inside
    done_TN = terminated_TN | truncated_TN
    next_value_TN = _next_values(value_TNK[..., 0], terminated_TN, truncated_TN, final_value_TN, last_value_N)
    advantage_TNK = torch.zeros_like(reward_TNK)
    running_N = torch.zeros_like(last_value_N)
    num_decisions, _, chunk = reward_TNK.shape
    for t in reversed(range(num_decisions)):
        running_N = torch.where(done_TN[t] | (executed_TN[t] == 0), 0.0, running_N)
        after_N = next_value_TN[t]
        for k in reversed(range(chunk)):
            last_N, active_N = executed_TN[t] == k + 1, executed_TN[t] > k
            discount_N = gamma * torch.where(last_N, gae_lambda, inside)
            step_N = reward_TNK[t, :, k] + gamma * after_N - value_TNK[t, :, k] + discount_N * running_N
            running_N = torch.where(active_N, step_N, running_N)
            after_N = torch.where(active_N, value_TNK[t, :, k], after_N)
            advantage_TNK[t, :, k] = torch.where(active_N, step_N, 0.0)
    return advantage_TNK


def _next_values(
    value_TN: Tensor,
    terminated_TN: Tensor,
    truncated_TN: Tensor,
    final_value_TN: Tensor,
    last_value_N: Tensor,
) -> Tensor:
    next_value_TN = torch.cat([value_TN[1:], last_value_N[None]])
    next_value_TN = torch.where(truncated_TN, final_value_TN, next_value_TN)
    return torch.where(terminated_TN, torch.zeros_like(next_value_TN), next_value_TN)


def compute_gae(buffer: ChunkRolloutBuffer, last_value_N: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    """Return the advantages `[T, N]`, or `[T, N, K]` where the buffer has rewards per step; fill the critic's targets.

    gamma and lambda count decisions, or simulator steps. Advantages of what was not executed mean nothing.
    """
    common: dict[str, Any] = {
        "terminated_TN": buffer.terminated_TN,
        "truncated_TN": buffer.truncated_TN,
        "final_value_TN": buffer.final_value_TN,
        "last_value_N": last_value_N,
        "gamma": gamma,
        "gae_lambda": gae_lambda,
    }
    if buffer.step_reward_TNK is None:
        advantage_TN = gae(buffer.reward_TN, buffer.value_TN, **common)
        buffer.return_TN.copy_(advantage_TN + buffer.value_TN)
        return advantage_TN
    own_value_TNK = buffer.step_value_TNK
    value_TNK = buffer.value_TN[..., None].expand_as(buffer.step_reward_TNK) if own_value_TNK is None else own_value_TNK
    inside = 1.0 if own_value_TNK is None else None
    steps: dict[str, Any] = {"executed_TN": buffer.executed_TN, "lambda_inside": inside}
    advantage_TNK = step_gae(buffer.step_reward_TNK, value_TNK, **steps, **common)
    buffer.return_TN.copy_(advantage_TNK[..., 0] + buffer.value_TN)
    if own_value_TNK is not None:
        buffer.step_return_TNK = advantage_TNK + value_TNK
    return advantage_TNK


Total = Callable[[Tensor], Tensor]
"""Sum of a tensor over all ranks, elementwise."""


def even_scale(elements_M: Tensor, total: Total = Tensor.double) -> float:
    """The weight of each element of M decisions (all ranks together) with which all count the same.

    The weighted sum over all elements, divided by the number of decisions, is their plain mean. Zero without any.
    """
    decisions, elements = total(torch.tensor([len(elements_M), int(elements_M.sum())])).tolist()
    return float(decisions / elements) if elements else 0.0


def trajectory_scale(
    elements_M: Tensor, trajectory_M: Tensor, total: Total = Tensor.double, *, places: tuple[int, int] | None = None
) -> Tensor:
    """Float `[M]`: weights with which every trajectory counts the same, however long it was.

    Each of the B trajectories present gets weight 1/B, spread evenly over its n_b elements: an element of
    trajectory b weighs M / (B * n_b). Only trajectories among the M decisions count, so a filter does not shrink the
    rest. `trajectory_M` holds any integers that name the trajectories; M and B are those of all ranks, or `places`:
    those of all ranks with the masked ones, where a minibatch counts these, too.
    """
    names, index_M = torch.unique(trajectory_M, return_inverse=True)
    per_trajectory = torch.zeros(len(names), device=elements_M.device)
    per_trajectory.index_add_(0, index_M, elements_M.float())
    decisions, trajectories = places or total(torch.tensor([len(elements_M), len(names)])).tolist()
    return decisions / (trajectories * per_trajectory[index_M])


def constant_scale(elements_M: Tensor, trajectory_M: Tensor, num_elements: int, total: Total = Tensor.double) -> float:
    """The weight of each element of M decisions with which the loss of a trajectory is its sum over `num_elements`.

    The divisor is the same for all trajectories, so an element of a long one counts as much as one of a short one and
    the length has no influence on its sign (Liu et al. 2025, Dr. GRPO, arXiv:2503.20783, section 3.2): each element
    weighs M / (B * num_elements). M and B are those of all ranks. Zero without any.
    """
    counts = torch.tensor([len(elements_M), len(torch.unique(trajectory_M))])
    decisions, trajectories = total(counts).tolist()
    return float(decisions / (trajectories * num_elements)) if trajectories else 0.0


def write_loss_weights(
    buffer: ChunkRolloutBuffer,
    selected_TN: Tensor,
    level: LogprobLevel,
    loss_weight: LossWeight | GroupLossWeight,
    process_group: ProcessGroup,
    *,
    masked: bool = False,
) -> None:
    """Write the weights of the elements, at `level`, and of the values of the selected decisions (bool `[T, N]`).

    "decision" and "token": every element counts the same. "trajectory": every episode does, or part of one that the
    rollout begins or ends with, for the policy and for the critic. "constant": every element does, and an episode
    counts by its share of the elements of one that takes all T whole chunks. With `masked` minibatches ("trajectory"
    alone) the weights are for all places of the rollout: of one episode to a column, those in which nothing was run
    are its masked end.
    """
    total, elements_TN = process_group.all_reduce_sum, buffer.elements_TN(level)
    elements_M, name_M = elements_TN[selected_TN], episodes_TN(buffer)[selected_TN]
    scale: Tensor | float
    if loss_weight == "trajectory":
        places = None
        if masked:
            num_episodes = len(episodes_TN(buffer)[buffer.executed_TN > 0].unique())
            places = (elements_TN.numel() * process_group.size, int(total(torch.tensor(num_episodes))))
        scale = trajectory_scale(elements_M, name_M, total, places=places)
        num_values_TN = (buffer.executed_TN > 0).long() if buffer.step_return_TNK is None else buffer.executed_TN
        buffer.value_scale_TN = torch.zeros_like(buffer.element_scale_TN)
        buffer.value_scale_TN[selected_TN] = trajectory_scale(num_values_TN[selected_TN], name_M, total, places=places)
    elif loss_weight == "constant":
        chunk, action_dim = buffer.logprob_TNKA.shape[2:]
        per_chunk = int(elements_per_decision(torch.tensor(chunk), action_dim, level))
        scale = constant_scale(elements_M, name_M, buffer.buffer_size * per_chunk, total)
    else:
        scale = even_scale(elements_M, total)
        if buffer.step_return_TNK is not None:
            value_scale = even_scale(buffer.executed_TN[selected_TN], total)
            buffer.value_scale_TN = torch.full_like(buffer.element_scale_TN, value_scale)
    buffer.element_scale_TN[selected_TN] = scale


def episodes_TN(buffer: ChunkRolloutBuffer) -> Tensor:
    """A name of the episode that each decision belongs to, of this rank's, int64 `[T, N]`."""
    ended_TN = (buffer.terminated_TN | buffer.truncated_TN).long()
    before_TN = ended_TN.cumsum(dim=0) - ended_TN
    return before_TN + (buffer.buffer_size + 1) * torch.arange(buffer.columns)
