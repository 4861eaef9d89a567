"""A policy that others serve: its address, connections that are opened again where they break, and its methods.

`RemotePolicy` has the methods of `VLAPolicy` that evaluating, recording and collecting call.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import numpy as np
import torch
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from vla_gym.errors import BadValue, ServerFailed
from vla_policies.actions.noise import TORCH_NOISE, EpisodeNoise, Noise, SlotNoise
from vla_policies.checkpoint_io.json_records import from_json, to_json
from vla_policies.types import ActionSample
from zoo.config.evaluation import EvaluationProtocol
from zoo.serving.declaration import METADATA_KEY, Declaration, read_token
from zoo.serving.protocols import ClientSession, NoiseKey, check_chunk, renamed
from zoo.serving.server import SESSIONS
from zoo.serving.vla_eval import action_spec
from zoo.serving.wire import Payload
from zoo.yaml_text import read_yaml

LOGGER = logging.getLogger(__name__)
GREETING_SECONDS = 10.0
"""How long a server may take to open a connection and greet."""
LARGEST_ANSWER = 2**24
"""Most bytes of a server's message."""
_BROKEN = (ConnectionClosed, TimeoutError, OSError, InvalidHandshake)
_FINAL = (1003, 1008, 1009)
"""Closing codes (unsupported data, policy violation, too big) after which the same request would end the same way."""
_Got = TypeVar("_Got")


@dataclass(frozen=True, kw_only=True)
class ServerConf:
    """The content of `--server-conf FILE`."""

    protocol: Literal["openpi", "vla-eval"] = "openpi"
    """Protocol of the server."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Our observation keys -> the server's words, where those are not the protocol's usual ones."""
    timeout: float = 60.0
    """Longest wait for an answer, seconds."""
    attempts: int = 6
    """How often a request is sent before the command gives up; the waits between double from 0.5 s."""
    policy: Payload | None = None
    """Declaration of the policy (fields of `Declaration`), of a server that sends none."""

    def __post_init__(self) -> None:
        if self.timeout <= 0 or self.attempts < 1:
            raise BadValue(f"timeout must be > 0 and attempts >= 1, got {self.timeout} and {self.attempts}")
        renamed(SESSIONS[self.protocol].NAMES, self.names)


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """A policy server and how to speak with it."""

    url: str
    """`ws://host:port` or `wss://host:port`."""
    conf: ServerConf = field(default_factory=ServerConf)
    """The user's statements about it."""
    token: str | None = field(default=None, repr=False)
    """Token that it asks its clients for."""

    def session(self) -> ClientSession:
        """Return a client's side of a new connection."""
        protocol = SESSIONS[self.conf.protocol]
        return protocol.CLIENT(renamed(protocol.NAMES, self.conf.names))


def server_address(url: str, *, conf_file: str | None = None, token_file: str | None = None) -> ServerAddress:
    """Return the address of `--policy url`; raises `BadValue` for what is none."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise BadValue(f"--policy {url}: {error}") from error
    if not host or parts.fragment or parts.query or parts.username is not None:
        raise BadValue(
            f"--policy {parts.scheme}://{host or ''}...: the address of a policy server is ws://HOST:PORT or "
            "wss://HOST:PORT; a token would be printed with it: give it with --token-file FILE"
        )
    conf = {} if conf_file is None else read_yaml(Path(conf_file)) or {}
    return ServerAddress(
        url=url,
        conf=from_json(ServerConf, conf, f"--server-conf {conf_file}"),
        token=None if token_file is None else read_token(Path(token_file)),
    )


class PolicyConnection:
    """Asks one question at a time; a question whose answer does not come is asked again on a new connection."""

    def __init__(self, address: ServerAddress, expected: Declaration | None = None) -> None:
        """`expected` is the declaration that a server must (still) give."""
        self._address, self._expected = address, expected
        self._session = address.session()
        self._ws: ClientConnection | None = None
        self._closing = ExitStack()
        self._question: tuple[Payload, NoiseKey, bool] | None = None

    def greeting(self) -> Payload:
        """Open a connection and return the server's metadata."""
        return self._retry(self._open)

    def ask(self, obs: Payload, noise: NoiseKey, *, deterministic: bool) -> None:
        """Send a request for a decision, whose actions `answer` returns; on a new connection the episode begins."""
        self._question = obs, noise, deterministic
        try:
            self._send()
        except _BROKEN as error:
            self._drop(error)

    def answer(self) -> object:
        """Return the actions that answer `ask`; raises `ServerFailed` once all attempts have failed."""
        return self._retry(self._receive)

    def close(self) -> None:
        """Close the connection, if it is open."""
        self._ws = None
        self._closing.close()

    def _retry(self, attempt: Callable[[], _Got]) -> _Got:
        url, attempts, wait = self._address.url, self._address.conf.attempts, 0.5
        while True:
            try:
                return attempt()
            except _BROKEN as error:
                reason = self._drop(error)
                if wait >= 0.5 * 2 ** (attempts - 1):
                    raise ServerFailed(f"policy server {url} {reason} ({attempts} attempts)") from error
                LOGGER.warning("policy server %s %s; trying again in %g s", url, reason, wait)
            time.sleep(wait)
            wait *= 2

    def _open(self) -> Payload:
        self.close()
        token = self._address.token
        self._session = self._address.session()
        connecting = connect(
            self._address.url,
            compression=None,
            max_size=LARGEST_ANSWER,
            additional_headers={} if token is None else {"Authorization": f"Bearer {token}"},
            open_timeout=GREETING_SECONDS,
            close_timeout=2,
            ping_interval=None,  # a busy server is not a broken one: answers have their own time limit
            proxy=None,
        )
        self._ws = self._closing.enter_context(connecting)  # websockets asks for a context manager
        if hello := self._session.hello():
            self._ws.send(hello)
        metadata = self._session.read_greeting(self._ws.recv(timeout=GREETING_SECONDS))
        if self._expected is not None and _declared(metadata, self._address) != self._expected:
            raise ServerFailed(f"policy server {self._address.url} now serves another policy than at the start")
        return metadata

    def _send(self) -> ClientConnection:
        assert self._question is not None
        obs, noise, deterministic = self._question
        begins = self._ws is None or _decision(noise) == 0
        if self._ws is None:
            self._open()
        assert self._ws is not None
        for message in self._session.episode(obs["instruction"]) if begins else []:
            self._ws.send(message)
        self._ws.send(self._session.observation(obs, noise, deterministic=deterministic))
        return self._ws

    def _receive(self) -> object:
        ws = self._ws or self._send()
        return self._session.read_answer(ws.recv(timeout=self._address.conf.timeout))

    def _drop(self, error: Exception) -> str:
        """Close a connection that broke and return why; raises `ServerFailed` where another attempt is in vain."""
        self.close()
        if isinstance(error, InvalidStatus):
            status = error.response.status_code
            if status == 503:
                return f"accepts no more clients (HTTP status {status})"
            final = f"answers with HTTP status {status}"
            final += ": it refuses the token; give its own with --token-file FILE" if status == 401 else ""
        elif isinstance(error, ConnectionClosed):
            if error.rcvd is None or error.rcvd.code not in _FINAL:
                return f"closed the connection ({error})"
            final = f"refuses the message: {error}"
        elif isinstance(error, TimeoutError):
            return f"did not answer in time; does it speak {self._address.conf.protocol}?"
        else:
            return f"cannot be reached: {getattr(error, 'strerror', None) or error}"
        raise ServerFailed(f"policy server {self._address.url} {final}")


def read_declaration(address: ServerAddress) -> Declaration:
    """Ask a server for its policy's declaration; a server that sends none needs `policy` in `--server-conf`.

    Raises `BadValue` where neither declares, or both do, and `ServerFailed` where it cannot be reached.
    """
    connection = PolicyConnection(address)
    try:
        return _declared(connection.greeting(), address)
    except WebSocketException as error:
        raise BadValue(f"--policy {address.url}: {error}") from error
    finally:
        connection.close()


def _declared(metadata: Payload, address: ServerAddress) -> Declaration:
    stated = address.conf.policy
    if METADATA_KEY in metadata:
        if stated is not None:
            raise BadValue(f"{address.url} declares its policy itself; leave policy out of --server-conf")
        return from_json(Declaration, metadata[METADATA_KEY], f"declaration of {address.url}")
    if stated is None:
        raise BadValue(
            f"the policy server {address.url} does not declare its observations and actions; state them in "
            "--server-conf FILE, see docs/serving.md"
        )
    declaration = from_json(Declaration, {"policy": address.url, **stated}, "policy of --server-conf")
    _check_specs(metadata, declaration, address)
    return declaration


def _check_specs(metadata: Payload, stated: Declaration, address: ServerAddress) -> None:
    # vla-eval's HELLO has specs.
    told = metadata.get("action_spec")
    for part, ours in action_spec(stated).items():
        theirs = told.get(part) if isinstance(told, dict) else None
        if not isinstance(theirs, dict) or "raw" in (ours["format"], theirs.get("format")):
            continue
        for name in ("format", "dims"):
            if theirs.get(name) != ours[name]:
                raise BadValue(
                    f"{address.url} says that {part} of its actions has {name} {theirs.get(name)!r}, "
                    f"--server-conf says {ours[name]!r}"
                )


class RemotePolicy:
    """One connection for each episode under way, all asked at once, so that the server can share batches among them.

    Deterministic actions and samples are those of the policy loaded here, since the noise is named to the server; a
    server that is not ours selects its actions as it likes.
    """

    def __init__(self, address: ServerAddress, declaration: Declaration) -> None:
        self.declaration = self.conventions = declaration
        self.name, self.weights_sha256 = address.url, declaration.weights_sha256
        self.read_as = declaration.read_as
        self._address = address
        self._connections: list[PolicyConnection] = []
        self._place: dict[NoiseKey, int] = {}
        """Episode -> its connection."""
        self.close = weakref.finalize(self, _close_all, self._connections)
        """Close all connections."""

    def to_json(self) -> dict[str, Any]:
        """Return what the server says of the policy, as JSON values."""
        return to_json(self.declaration)

    @property
    def is_ours(self) -> bool:
        """Whether the server is `vla-zoo serve`, which reads how each request's actions are selected."""
        return self._address.conf.policy is None

    def check_acting(self, protocol: EvaluationProtocol) -> None:
        """Raise `BadValue` where the served policy does not act by the protocol."""
        if not self.is_ours and protocol.sample == self.declaration.deterministic:
            kind = "deterministic" if self.declaration.deterministic else "sampled"
            flag = "leave --stochastic out" if protocol.sample else "say --stochastic"
            raise BadValue(f"--server-conf says that {self._address.url} selects {kind} actions; {flag}")
        if protocol.rounds > 1 and not protocol.sample:
            raise BadValue(
                f"--rounds {protocol.rounds} would play every start state {protocol.rounds} times alike; sample with "
                "--stochastic"
            )

    def action_selection_text(self, *, deterministic: bool) -> str:
        """As `VLAPolicy.action_selection_text`."""
        kind = "deterministic" if deterministic else "sampled"
        return self.declaration.selection.get(kind, f"{kind} actions, as {self._address.url} selects them")

    def predict(
        self,
        observation: Payload,
        state: object = None,
        episode_start: object = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, object]:
        """Action chunks `[B, K, A]`, each as of an episode's first decision; see `predict_with_noise`."""
        slot_B = np.arange(len(observation["instruction"]))
        return self.predict_with_noise(observation, SlotNoise(0, (0, 0), slot_B), deterministic=deterministic), state

    def act(self, obs: Payload, deterministic: bool = False, noise: Noise = TORCH_NOISE) -> ActionSample:
        """As `VLAPolicy.act`; zeros stand for the values and log-probabilities, which servers do not send."""
        action_BKA = torch.from_numpy(self.predict_with_noise(obs, noise, deterministic=deterministic))
        return ActionSample(
            action_BKA=action_BKA, logprob_BKA=torch.zeros_like(action_BKA), value_B=torch.zeros(len(action_BKA))
        )

    def predict_with_noise(self, observation: Payload, noise: Noise, *, deterministic: bool = False) -> np.ndarray:
        """As `VLAPolicy.predict_with_noise`, of an `EpisodeNoise` or `SlotNoise`; raises `ServerFailed`."""
        keys = _noise_keys(noise)
        connections = self._connections_of([_episode(key) for key in keys])
        for row, (key, connection) in enumerate(zip(keys, connections, strict=True)):
            arrays = {name: np.ascontiguousarray(observation[name][row]) for name in self.declaration.fields()}
            obs = {**arrays, "instruction": str(observation["instruction"][row])}
            connection.ask(obs, key, deterministic=deterministic)
        return np.stack([check_chunk(connection.answer(), self.declaration) for connection in connections])

    def _connections_of(self, episodes: Sequence[NoiseKey]) -> list[PolicyConnection]:
        # The one that the episode had; a new episode takes that of one that is over.
        if len(set(episodes)) != len(episodes):
            raise ValueError("two rows of a batch are of one episode")
        self._place = {episode: place for episode, place in self._place.items() if episode in episodes}
        free = iter(sorted(set(range(len(episodes) + len(self._connections))) - set(self._place.values())))
        for episode in episodes:
            if episode not in self._place:
                self._place[episode] = next(free)
        while len(self._connections) <= max(self._place.values()):
            self._connections.append(PolicyConnection(self._address, self.declaration))
        return [self._connections[self._place[episode]] for episode in episodes]


def _noise_keys(noise: Noise) -> list[NoiseKey]:
    if isinstance(noise, SlotNoise):
        return [(noise.seed, *noise.decision, slot) for slot in noise.slot_N.tolist()]
    assert isinstance(noise, EpisodeNoise), "others have no name"
    return [(noise.seed, *decision) for decision in noise.decisions]


def _episode(key: NoiseKey) -> NoiseKey:
    """Return what tells the episode of a decision from those beside it: (task, trial, round), or (slot,)."""
    return key[1:4] if len(key) == 5 else key[3:]


def _decision(key: NoiseKey) -> int:
    return key[4] if len(key) == 5 else key[2]


def _close_all(connections: Sequence[PolicyConnection]) -> None:
    for connection in connections:
        connection.close()
