"""Learning from decisions of older weights: the decoupled objective of PPO. Pure.

The policy is kept near a proximal policy, the weights at the update's beginning, while the expectation is corrected
for the behaviour policy, the weights that decided (Hilton, Cobbe and Schulman 2022, "Batch size-invariance for policy
optimization", arXiv:2110.00641, equation 3):

    L = E_behaviour[ w min(r A, clip(r, 1 - low, 1 + high) A) ]
    r = pi / pi_proximal,   w = pi_proximal / pi_behaviour

As w > 0, this is PPO's loss with advantage w A. Published systems leave elements out whose w exceeds a cap.
"""

from __future__ import annotations

import torch
from torch import Tensor

WEIGHT_CAP = 2.0
"""Elements above it are left out: RLinf's default for OpenVLA's asynchronous PPO."""


def importance_weight(proximal_logprob_BL: Tensor, behaviour_logprob_BL: Tensor) -> Tensor:
    """w of each element, `[B, L]`, without gradient; 0 where it is above `WEIGHT_CAP`.

    Both log-probabilities are of the same decisions at the same level. Raises `ValueError` for different shapes.
    """
    if proximal_logprob_BL.shape != behaviour_logprob_BL.shape:
        raise ValueError(
            f"log-probabilities must have one shape, got {tuple(proximal_logprob_BL.shape)} and "
            f"{tuple(behaviour_logprob_BL.shape)}"
        )
    weight_BL = (proximal_logprob_BL - behaviour_logprob_BL).detach().exp()
    return torch.where(weight_BL > WEIGHT_CAP, torch.zeros_like(weight_BL), weight_BL)
