"""The interfaces that both protocols implement: a server's side of one connection, and a client's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from vla_gym.errors import BadValue, ServerFailed, check_known
from zoo.serving.declaration import METADATA_KEY, Declaration
from zoo.serving.requests import Decision, NoiseKey, NoiseStream, Request
from zoo.serving.wire import as_mapping

OBSERVATION_KEYS = ("image", "wrist_image", "state", "instruction")
"""Our keys of an observation, which a protocol's `NAMES` translate."""


class ServerSession(ABC):
    """A server's side of one connection; one message is handled at a time."""

    NAMES: ClassVar[Mapping[str, str]]
    """Our observation keys -> the protocol's words."""

    def __init__(self, declaration: Declaration, names: Mapping[str, str], stream: NoiseStream) -> None:
        self.declaration, self.names, self.stream = declaration, names, stream

    @abstractmethod
    def greeting(self) -> bytes | None:
        """Return the message that opens the connection, where the server speaks first."""

    @abstractmethod
    def receive(self, data: bytes) -> Request | bytes | None:
        """Return what a message asks for: a decision, an answer that is ready, or nothing. Raises `BadValue`."""

    @abstractmethod
    def answer(self, decision: Decision) -> bytes:
        """Return the answer to the last request."""

    @abstractmethod
    def refusal(self, reason: str) -> bytes | str:
        """Return the message that tells a client in one line why it gets no answer."""


class ClientSession(ABC):
    """A client's side of one connection."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names
        self.server_is_ours = False
        """Whether the server's greeting held a declaration, so that it reads what only our clients say."""

    @abstractmethod
    def hello(self) -> bytes | None:
        """Return the message that opens the connection, where the client speaks first."""

    @abstractmethod
    def read_greeting(self, data: bytes | str) -> Mapping[str, Any]:
        """Return the server's metadata; raises `ServerFailed`."""

    @abstractmethod
    def episode(self, instruction: str) -> list[bytes]:
        """Return the messages that begin an episode; they are not answered."""

    @abstractmethod
    def observation(self, obs: Mapping[str, Any], noise: NoiseKey, *, deterministic: bool) -> bytes:
        """Return the request for a decision; `obs` is one observation under our keys."""

    @abstractmethod
    def read_answer(self, data: bytes | str) -> Mapping[str, Any]:
        """Return the answer: "actions", and of our servers "logprob" and "value". Raises `ServerFailed`."""


def details_of(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what our servers add to an answer; raises `ServerFailed` for anything but a mapping."""
    try:
        return as_mapping(answer.get(METADATA_KEY, {}), f"'{METADATA_KEY}' of the server's answer")
    except BadValue as error:
        raise ServerFailed(str(error)) from error


def renamed(names: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return a protocol's words with the user's `own` over them; raises `BadValue` where one would name two keys."""
    for key in own:
        check_known("observation key", key, OBSERVATION_KEYS)
    words: dict[str, str] = {}
    for key, name in {**names, **own}.items():
        if name in words.values():
            other = next(one for one, word in words.items() if word == name)
            raise BadValue(f"'{name}' would be the name of {other} and of {key}; each has its own")
        words[key] = name
    return words


def check_chunk(answer: Mapping[str, Any], declaration: Declaration) -> np.ndarray:
    """Return the answer's actions that are played, float32 `[K, A]`; raises `ServerFailed` for anything else.

    Single actions `[A]` are chunks of 1. Numbers beyond [-1, 1] are clipped, as controllers do.
    """
    actions = answer.get("actions")
    wanted = (declaration.answer_length, declaration.action_dim)
    if not isinstance(actions, np.ndarray) or actions.dtype.kind != "f":
        got = actions.dtype if isinstance(actions, np.ndarray) else type(actions).__name__
        raise ServerFailed(f"'actions' of the server's answer must be floating point numbers {list(wanted)}, got {got}")
    chunk = actions[None] if actions.ndim == 1 else actions
    if chunk.shape != wanted:
        raise ServerFailed(f"'actions' of the server's answer must be {list(wanted)}, got {list(actions.shape)}")
    if not np.isfinite(chunk).all():
        raise ServerFailed("'actions' of the server's answer hold numbers that are not finite")
    return np.clip(chunk[: declaration.chunk].astype(np.float32), -1.0, 1.0)
