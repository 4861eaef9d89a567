"""The interfaces that both protocols implement, a server's side of one connection and a client's, and their records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vla_gym.errors import BadValue, ServerFailed, check_integer, check_known
from zoo.config.settings import LARGEST_SEED
from zoo.serving.declaration import METADATA_KEY, Declaration
from zoo.serving.wire import Payload, as_mapping

OBSERVATION_KEYS = ("image", "wrist_image", "state", "instruction")
"""Our keys of an observation, which a protocol's `NAMES` translate."""
NoiseKey = tuple[int, ...]
"""Names the random numbers of one decision, so that a server draws those that its client would.

(seed, update, decision, slot) is `SlotNoise`, (seed, task, trial, round, decision) `EpisodeNoise`.
"""


@dataclass(frozen=True, kw_only=True)
class ActionRequest:
    """One observation to decide for."""

    observation: Payload
    """Under our keys, checked: uint8 `[H, W, 3]` images, float32 `[S]` state, the instruction as text."""
    noise: NoiseKey
    """Random numbers of the decision, where it draws any."""
    deterministic: bool
    """Whether it is the policy's deterministic action."""
    whole_chunk: bool = False
    """Whether the client reads the chunk at once, where its protocol sends single actions."""


class ServerSession(ABC):
    """A server's side of one connection; one message is handled at a time."""

    NAMES: ClassVar[Mapping[str, str]]
    """Our observation keys -> the protocol's words."""
    CLIENT: ClassVar[type[ClientSession]]
    """The client's side."""

    def __init__(self, declaration: Declaration, names: Mapping[str, str], seed: int, slot: int) -> None:
        """`seed` and `slot` name the connection's random numbers: `SlotNoise` of (0, number of the decision)."""
        self.declaration, self.names = declaration, names
        self.stream = {"seed": seed, "slot": slot}
        self._decisions = 0

    def greeting(self) -> bytes | None:
        """Return the message that opens the connection, where the server speaks first."""
        return None

    @abstractmethod
    def receive(self, data: bytes) -> ActionRequest | bytes | None:
        """Return what a message asks for: a decision, an answer that is ready, or nothing. Raises `BadValue`."""

    @abstractmethod
    def answer(self, action_KA: np.ndarray, seconds: float) -> bytes:
        """Return the answer to the last request: actions in [-1, 1], float32, and seconds from its arrival on."""

    @abstractmethod
    def refusal(self, reason: str) -> bytes | str:
        """Return the message that tells a client in one line why it gets no answer."""

    def request(self, values: Payload, extras: object) -> ActionRequest:
        """Check one observation (`values` under our keys) and what our own clients add to it under `METADATA_KEY`."""
        observation = self.declaration.check_observation(values, self.names)
        given = {} if extras is None else as_mapping(extras, METADATA_KEY)
        for name in given:
            check_known(f"entry of {METADATA_KEY}", name, ("noise", "deterministic", "chunk"))
        deterministic, chunk = given.get("deterministic", self.declaration.deterministic), given.get("chunk", False)
        if not isinstance(deterministic, bool) or not isinstance(chunk, bool):
            raise BadValue("deterministic and chunk must be true or false")
        if "noise" in given:
            noise = _noise_key(given["noise"])
        else:
            noise = (self.stream["seed"], 0, self._decisions, self.stream["slot"])
            self._decisions += 1
        return ActionRequest(observation=observation, noise=noise, deterministic=deterministic, whole_chunk=chunk)


class ClientSession(ABC):
    """A client's side of one connection."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names
        self.server_is_ours = False
        """Whether the server's greeting held a declaration, so that it reads our additions to a request."""

    def hello(self) -> bytes | None:
        """Return the message that opens the connection, where the client speaks first."""
        return None

    def read_greeting(self, data: bytes | str) -> Payload:
        """Return the server's metadata; raises `ServerFailed`."""
        metadata = self._read(data, "hello")
        self.server_is_ours = METADATA_KEY in metadata
        return metadata

    def episode(self, instruction: str) -> list[bytes]:
        """Return the messages that begin an episode; they are not answered."""
        return []

    @abstractmethod
    def observation(self, obs: Payload, noise: NoiseKey, *, deterministic: bool) -> bytes:
        """Return the request for a decision; `obs` is one observation under our keys."""

    def read_answer(self, data: bytes | str) -> object:
        """Return the actions of an answer, unchecked. Raises `ServerFailed`."""
        answer = self._read(data, "action")
        return answer.get("actions", answer.get("action"))

    def _read(self, data: bytes | str, wanted: str) -> Payload:
        try:
            return self.payload(data, wanted)
        except BadValue as error:
            raise ServerFailed(f"the policy server's answer cannot be read: {error}") from error

    @abstractmethod
    def payload(self, data: bytes | str, wanted: str) -> Payload:
        """Return what a message of the type `wanted` says.

        Raises `BadValue` for what is no message, and `ServerFailed` for a refusal and for another message.
        """


def _noise_key(values: object) -> NoiseKey:
    if not isinstance(values, list) or len(values) not in (4, 5):
        raise BadValue(
            f"noise must be [seed, update, decision, slot] or [seed, task, trial, round, decision], got {values!s:.60}"
        )
    seed = check_integer("seed of the noise", values[0], 0, LARGEST_SEED)
    return (seed, *(check_integer("a number of the noise", value, 0, 2**31 - 1) for value in values[1:]))


def renamed(names: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return a protocol's words with the user's `own` over them; raises `BadValue` where one would name two keys."""
    for key in own:
        check_known("observation key", key, OBSERVATION_KEYS)
    words = {**names, **own}
    for key, name in own.items():
        if twins := [other for other, word in words.items() if word == name and other != key]:
            raise BadValue(f"'{name}' would be the name of {key} and of {twins[0]}; each has its own")
    return words


def check_chunk(actions: object, declaration: Declaration) -> np.ndarray:
    """Return the actions of an answer that are played, float32 `[K, A]`; raises `ServerFailed` for anything else.

    Single actions `[A]` are chunks of 1. Numbers beyond [-1, 1] are clipped, as controllers do.
    """
    chunk = actions[None] if isinstance(actions, np.ndarray) and actions.ndim == 1 else actions
    wanted = (declaration.answer_length, declaration.action_dim)
    floats = isinstance(chunk, np.ndarray) and chunk.dtype.kind == "f"
    if not isinstance(chunk, np.ndarray) or not floats or chunk.shape != wanted or not np.isfinite(chunk).all():
        got = f"{actions.dtype} {list(actions.shape)}" if isinstance(actions, np.ndarray) else type(actions).__name__
        raise ServerFailed(f"'actions' of the server's answer must be finite floats {list(wanted)}, got {got}")
    return np.clip(chunk[: declaration.chunk].astype(np.float32), -1.0, 1.0)
