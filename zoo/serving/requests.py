"""Records between a server's connections and the policy it serves, and the random numbers that belong to a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_gym.errors import BadValue, check_integer, check_known
from zoo.config.run_config import LARGEST_SEED
from zoo.serving.declaration import METADATA_KEY, Declaration
from zoo.serving.wire import as_mapping

_LARGEST_COUNT = 2**31 - 1
_EXTRAS = ("noise", "deterministic", "chunk")


@dataclass(frozen=True, kw_only=True)
class NoiseKey:
    """Names the random numbers of one decision, so that a server draws the very ones that its client would.

    Three numbers are `SlotNoise`'s (update, decision, slot), four `EpisodeNoise`'s (task, trial, round, decision).
    """

    seed: int
    """Seed of the numbers."""
    numbers: tuple[int, ...]
    """What else they follow from."""

    def to_list(self) -> list[int]:
        """Return the seed and the numbers."""
        return [self.seed, *self.numbers]

    @classmethod
    def from_list(cls, values: Any) -> NoiseKey:
        """Inverse of `to_list`; raises `BadValue`."""
        if not isinstance(values, list) or len(values) not in (4, 5):
            raise BadValue(
                "noise must be [seed, update, decision, slot] or [seed, task, trial, round, decision], got "
                f"{str(values)[:60]}"
            )
        seed = check_integer("seed of the noise", values[0], 0, LARGEST_SEED)
        numbers = [check_integer("a number of the noise", value, 0, _LARGEST_COUNT) for value in values[1:]]
        return cls(seed=seed, numbers=tuple(numbers))


@dataclass
class NoiseStream:
    """The stream of a client that names no noise itself: `SlotNoise` of (episode, decision), counted here."""

    seed: int
    """Seed of the stream."""
    slot: int
    """Tells streams of one seed apart."""
    episode: int = 0
    """Number of the present episode."""
    decision: int = 0
    """Number of its next decision."""

    def next_key(self) -> NoiseKey:
        """Return the key of the next decision and count it."""
        self.decision += 1
        return NoiseKey(seed=self.seed, numbers=(self.episode, self.decision - 1, self.slot))

    def begin_episode(self) -> None:
        """Count an episode; its decisions begin at 0."""
        if self.decision:
            self.episode, self.decision = self.episode + 1, 0


@dataclass(frozen=True, kw_only=True)
class Request:
    """One observation to decide for."""

    observation: Mapping[str, Any]
    """Under our keys, checked: uint8 `[H, W, 3]` pictures, float32 `[S]` state, the instruction as text."""
    noise: NoiseKey
    """Random numbers of the decision, where it draws any."""
    deterministic: bool
    """Whether it is the policy's deterministic action."""
    details: bool = False
    """Whether the client, one of ours, also reads log-probabilities and value."""
    whole_chunk: bool = False
    """Whether the client takes the chunk at once, where its protocol deals single actions."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The answer to a request."""

    action_KA: np.ndarray
    """Actions in [-1, 1], float32."""
    logprob_KA: np.ndarray
    """Log-probability of each number, float32."""
    value: float
    """State value."""
    seconds: float = 0.0
    """Seconds from the request's arrival to its decision."""

    def details(self) -> dict[str, Any]:
        """Return what our own clients read beside the actions."""
        return {"logprob": self.logprob_KA, "value": self.value}


def make_request(
    values: Mapping[str, Any],
    extras: Any,
    declaration: Declaration,
    names: Mapping[str, str],
    stream: NoiseStream,
) -> Request:
    """Check one observation (`values` under our keys) and what our own clients add to it under `METADATA_KEY`."""
    observation = declaration.check_observation(values, names)
    given = {} if extras is None else as_mapping(extras, METADATA_KEY)
    for name in given:
        check_known(f"entry of {METADATA_KEY}", name, _EXTRAS)
    flags = {"deterministic": declaration.deterministic, "chunk": False} | {
        name: given[name] for name in ("deterministic", "chunk") if name in given
    }
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise BadValue("deterministic and chunk must be true or false")
    return Request(
        observation=observation,
        noise=NoiseKey.from_list(given["noise"]) if "noise" in given else stream.next_key(),
        deterministic=flags["deterministic"],
        details=extras is not None,
        whole_chunk=flags["chunk"],
    )
