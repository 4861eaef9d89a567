"""A learning rate that follows the KL its steps bring: the schedule "adaptive" of RSL-RL (rsl_rl/algorithms/ppo.py)."""

from __future__ import annotations

CHANGE = 1.5
"""By how much the rate changes at once."""
BAND = 2.0
"""A KL within so many times of the desired one, either way, leaves the rate alone."""
LARGEST = 100.0
"""The rate stays within so many times of its schedule, either way; RSL-RL: within 1e-5 and 1e-2."""


def adapted(factor: float, kl: float, desired_kl: float) -> float:
    """Return the factor on the scheduled rate after a minibatch.

    Args:
        factor: the factor before it.
        kl: between the policy that acted and the one after the latest steps, nats per element. Neither nan
            nor 0, where no step was taken because no gradient was finite, changes anything.
        desired_kl: the KL that the rate aims at, above 0.
    """
    if kl > desired_kl * BAND:
        factor /= CHANGE
    elif 0 < kl < desired_kl / BAND:
        factor *= CHANGE
    return min(max(factor, 1 / LARGEST), LARGEST)
