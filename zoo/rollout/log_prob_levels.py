"""From tokens to one number: levels, masks and weights.

A decision is a chunk of K steps x A tokens of which only `executed` steps were run: the others had no
effect on the world, so they carry no credit. The policy loss of a batch is always

    mean over decisions of (sum over the decision's elements of weight * loss)

and the weights alone say what counts how much.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vla_gym.errors import BadValue
from vla_policies.types import ActionSample, Evaluation
from zoo.config.algorithm_configs import STEP_VALUES_LACKING, LogprobLevel


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


def entropies(entropy_BKA: Tensor, executed_B: Tensor, level: LogprobLevel, own_level: LogprobLevel) -> Tensor:
    """Entropies for the elements of `level`, float `[B, L]`, zero where masked.

    Where `own_level` differs, each element of a decision has the mean over the decision's elements at `own_level`, so
    that a bonus does not grow with `level`, and decisions weigh in it as in the policy loss.
    """
    entropy_BL, mask_BL = to_level(entropy_BKA, executed_B, level)
    if own_level == level:
        return entropy_BL
    own_BE, own_mask_BE = to_level(entropy_BKA, executed_B, own_level)
    mean_B = own_BE.sum(dim=1) / own_mask_BE.sum(dim=1).clamp(min=1)
    return mean_B[:, None] * mask_BL


def elements_per_decision(executed: Tensor, action_dim: int, level: LogprobLevel) -> Tensor:
    """Number of a decision's unmasked elements after `to_level`; shape and dtype of `executed`."""
    if level == "token":
        return executed * action_dim
    return executed if level == "action" else (executed > 0).to(executed.dtype)


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


def weighted_loss(loss_BL: Tensor, weight_BL: Tensor | None) -> Tensor:
    """Scalar: mean over decisions of the weighted sum over their elements; plain mean without weights."""
    if weight_BL is None:
        return loss_BL.mean()
    return (loss_BL * weight_BL).sum(dim=1).mean()


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
