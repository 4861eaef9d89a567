"""The generalised advantage estimate, of decisions and of the simulator steps of their chunks.

Shape letters: see `vla_gym.specs`.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
    if reward_TN.ndim != 2:
        raise ValueError(f"reward_TN must be [decisions, envs], got {tuple(reward_TN.shape)}")
    for name, other in (
        ("value_TN", value_TN),
        ("terminated_TN", terminated_TN),
        ("truncated_TN", truncated_TN),
        ("final_value_TN", final_value_TN),
    ):
        if other.shape != reward_TN.shape:
            raise ValueError(f"{name} is {tuple(other.shape)}, reward_TN {tuple(reward_TN.shape)}")
    if last_value_N.shape != reward_TN.shape[1:]:
        raise ValueError(f"last_value_N is {tuple(last_value_N.shape)}, reward_TN {tuple(reward_TN.shape)}")
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
    if reward_TNK.ndim != 3 or reward_TNK.shape != value_TNK.shape:
        raise ValueError(
            f"reward_TNK is {tuple(reward_TNK.shape)} and value_TNK {tuple(value_TNK.shape)}, both must be "
            "[decisions, envs, steps]"
        )
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
