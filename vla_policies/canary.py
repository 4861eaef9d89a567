"""What a policy decides on an observation that is always the same, so that a certificate can say it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np
from torch import nn

from vla_gym.errors import BadValue
from vla_gym.observation import encode_instruction
from vla_policies.actions.noise import Noise, SlotNoise
from vla_policies.conventions import Conventions
from vla_policies.types import ActionSample

CANARY_PARAMETERS = 50_000_000
"""Largest network whose canary is computed when it is saved; one decision of it takes below a second of a CPU."""
TOLERANCE = 1e-2
"""Largest difference, absolute and relative, that processors, devices and libraries may make."""
_INSTRUCTION = "put the red block on the plate"
_SEED = 0


class Actor(Protocol):
    """What is asked of a `VLAPolicy`."""

    training: bool

    @property
    def conventions(self) -> Conventions:
        """Observations and actions."""

    def act(self, obs: Mapping[str, np.ndarray], deterministic: bool = False, noise: Noise = ...) -> ActionSample:
        """Decide for a batch."""

    def set_training_mode(self, mode: bool) -> None:
        """Set or unset dropout and the like."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """All weights."""


def canary_observation(conventions: Conventions) -> dict[str, np.ndarray]:
    """One observation, batch first: pictures and state from SHAKE-256 of their names, the same on every machine."""
    obs = {}
    for key, space in conventions.observation_space().spaces.items():
        shape = space.shape or ()
        noise = (
            np.frombuffer(hashlib.shake_256(key.encode()).digest(int(np.prod(shape))), np.uint8)
            .reshape(1, *shape)
            .copy()
        )
        obs[key] = noise if space.dtype == np.uint8 else (noise / 127.5 - 1.0).astype(np.float32)
    obs["instruction"] = encode_instruction(_INSTRUCTION)[None]
    return obs


def canary_numbers(policy: Actor) -> tuple[float, ...] | None:
    """Log-probability of each step of the decision drawn with seed 0, K numbers, then the value of the observation.

    Uses no random number of torch's. None for a policy that cannot draw decisions (a regression head).
    """
    training = policy.training
    policy.set_training_mode(False)
    try:
        noise = SlotNoise(_SEED, (0, 0), np.zeros(1, dtype=np.int64))
        sample = policy.act(canary_observation(policy.conventions), noise=noise)
    except BadValue:
        return None
    finally:
        policy.set_training_mode(training)
    numbers = [*sample.logprob_BKA.sum(dim=2)[0].tolist(), float(sample.value_B[0])]
    return tuple(numbers) if np.isfinite(numbers).all() else None


def saved_canary(policy: Actor) -> tuple[float, ...] | None:
    """`canary_numbers` of networks of at most `CANARY_PARAMETERS`; None for larger ones."""
    if sum(parameter.numel() for parameter in policy.parameters()) > CANARY_PARAMETERS:
        return None
    return canary_numbers(policy)


def check_canary(policy: Actor, wanted: tuple[float, ...]) -> float:
    """Return the largest difference from the numbers of the saved policy; raises `BadValue` where it is too large."""
    numbers = canary_numbers(policy)
    if numbers is None or len(numbers) != len(wanted):
        raise BadValue(f"the policy decides {numbers} on the canary, of which its certificate says {wanted}")
    difference = np.abs(np.subtract(numbers, wanted))
    if (difference > TOLERANCE * (1.0 + np.abs(wanted))).any():
        raise BadValue(
            f"the policy decides otherwise than when it was saved: log-probabilities and value of the canary differ by "
            f"up to {difference.max():.3g}. Its files are as saved, so a library, its settings or its base differ; "
            "compare the versions in protocol.json with `pip list`"
        )
    return float(difference.max())
