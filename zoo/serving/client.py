"""One connection to a policy server, opened again where it breaks."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from vla_gym.errors import BadValue, MissingDependency, ServerFailed
from zoo.serving.access import is_loopback
from zoo.serving.address import ServerAddress
from zoo.serving.declaration import METADATA_KEY, Declaration
from zoo.serving.protocols import ClientSession
from zoo.serving.vla_eval import action_spec

LOGGER = logging.getLogger(__name__)
GREETING_SECONDS = 10.0
"""How long a server may take to open a connection and greet."""
LARGEST_ANSWER = 2**24
"""Most bytes of a server's message."""
_FINAL = {1003: "does not read such messages", 1008: "refuses this client", 1009: "takes smaller messages only"}
"""Closing codes after which the same request would end the same way."""
_BROKEN = (ConnectionClosed, TimeoutError, OSError, InvalidHandshake)


class PolicyConnection:
    """Asks one question at a time; a question whose answer does not come is asked again on a new connection."""

    def __init__(self, address: ServerAddress, expected: Declaration | None = None) -> None:
        """`expected` is the declaration that a server must (still) give."""
        self._address, self._expected = address, expected
        self._ws: ClientConnection | None = None
        self._closing = ExitStack()
        self._session: ClientSession | None = None
        self._ask: Callable[[ClientSession], list[bytes]] | None = None

    @property
    def session(self) -> ClientSession:
        """The protocol's side of the present connection, which is opened if there is none."""
        if self._session is None:
            self._retry(self._open)
        assert self._session is not None
        return self._session

    def greeting(self) -> Mapping[str, Any]:
        """Open a connection and return the server's metadata."""
        return self._retry(self._open)

    def ask(self, build: Callable[[ClientSession], list[bytes]]) -> None:
        """Send the messages that `build` makes, the last of which will be answered; `answer` returns that."""
        self._ask = build
        try:
            self._send()
        except _BROKEN as error:
            self._drop(error)

    def answer(self) -> Mapping[str, Any]:
        """Return the answer to `ask`; raises `ServerFailed` once all attempts have failed."""
        return self._retry(self._receive)

    def close(self) -> None:
        """Close the connection, if it is open."""
        self._ws = None
        self._closing.close()

    # Inside -------------------------------------------------------------------------------------------

    def _retry(self, attempt: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        conf, wait = self._address.conf, 0.5
        for number in range(1, conf.attempts + 1):
            try:
                return attempt()
            except _BROKEN as error:
                self._drop(error)
                reason = self._reason(error)
                if number == conf.attempts:
                    tries = f" ({number} attempts)" if number > 1 else ""
                    raise ServerFailed(f"policy server {self._address.url} {reason}{tries}") from error
                LOGGER.warning("policy server %s %s; trying again in %g s", self._address.url, reason, wait)
                time.sleep(wait)
                wait *= 2
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _open(self) -> Mapping[str, Any]:
        self.close()
        address = self._address
        session = address.session()
        self._ws, self._session = self._closing.enter_context(_connected(address)), session
        hello = session.hello()
        if hello is not None:
            self._ws.send(hello)
        metadata = session.read_greeting(self._ws.recv(timeout=GREETING_SECONDS))
        if self._expected is not None and _declared(metadata, self._address) != self._expected:
            raise ServerFailed(f"policy server {address.url} now serves another policy than at the start")
        return metadata

    def _send(self) -> None:
        assert self._ask is not None
        if self._ws is None:
            self._open()
        assert self._ws is not None
        assert self._session is not None
        for message in self._ask(self._session):
            self._ws.send(message)

    def _receive(self) -> Mapping[str, Any]:
        if self._ws is None:
            self._send()
        assert self._ws is not None
        assert self._session is not None
        return self._session.read_answer(self._ws.recv(timeout=self._address.conf.timeout))

    def _drop(self, error: BaseException) -> None:
        """Forget a connection that broke; raises `ServerFailed` where trying again would change nothing."""
        self.close()
        url = self._address.url
        if isinstance(error, InvalidStatus):
            status = error.response.status_code
            if status == 401:
                raise ServerFailed(f"policy server {url} refuses the token; give its own with --token-file FILE")
            if status != 503:
                raise ServerFailed(f"policy server {url} answers with HTTP status {status}; is it one?")
        elif isinstance(error, ssl.SSLError):
            raise ServerFailed(f"policy server {url}: {error.reason or error}; see ca_file of --server-conf")
        elif isinstance(error, ConnectionClosed) and error.rcvd is not None and error.rcvd.code in _FINAL:
            why = error.rcvd.reason or f"code {error.rcvd.code}"
            raise ServerFailed(f"policy server {url} {_FINAL[error.rcvd.code]} ({why})")

    def _reason(self, error: Exception) -> str:
        if isinstance(error, InvalidStatus):
            return f"takes no more clients (HTTP status {error.response.status_code})"
        if isinstance(error, ConnectionClosed):
            return f"closed the connection ({error})"
        if isinstance(error, TimeoutError):
            return f"did not answer in time; does it speak {self._address.conf.protocol}?"
        if isinstance(error, OSError):
            return f"cannot be reached: {error.strerror or error}"
        return f"does not speak WebSocket: {error}"


def _connected(address: ServerAddress) -> ClientConnection:
    try:
        return connect(
            address.url,
            compression=None,
            max_size=LARGEST_ANSWER,
            additional_headers={} if address.token is None else {"Authorization": f"Bearer {address.token}"},
            open_timeout=GREETING_SECONDS,
            close_timeout=2,
            # Neither end may call a busy one dead: answers have their own time limit.
            ping_interval=None,
            ssl=_trust(address) if address.url.startswith("wss") else None,
            # The system's, but not for this machine.
            proxy=None if is_loopback(urlsplit(address.url).hostname or "") else True,
        )
    except ImportError as error:
        raise MissingDependency(f"{address.url}: {error}. Install with: pip install python-socks") from error


def read_declaration(address: ServerAddress) -> Declaration:
    """Ask a server what it serves; a server that does not say needs `policy` in `--server-conf`.

    Raises `BadValue` where neither says, or both do and differ, and `ServerFailed` where it cannot be reached.
    """
    connection = PolicyConnection(address)
    try:
        return _declared(connection.greeting(), address)
    except WebSocketException as error:
        raise BadValue(f"--policy {address.url}: {error}") from error
    finally:
        connection.close()


def _declared(metadata: Mapping[str, Any], address: ServerAddress) -> Declaration:
    stated = address.declared()
    if METADATA_KEY not in metadata:
        if stated is None:
            raise BadValue(
                f"the policy server {address.url} does not declare what it reads and writes; state it in "
                "--server-conf FILE, see docs/serving.md"
            )
        _check_specs(metadata, stated, address)
        return stated
    told = metadata[METADATA_KEY]
    declaration = Declaration.from_json(told if isinstance(told, dict) else {}, f"declaration of {address.url}")
    if stated is not None:
        raise BadValue(f"{address.url} declares its policy itself; leave policy out of --server-conf")
    return declaration


def _check_specs(metadata: Mapping[str, Any], stated: Declaration, address: ServerAddress) -> None:
    """Raise `BadValue` where vla-eval's specs in a HELLO contradict what the user states."""
    told = metadata.get("action_spec")
    if not isinstance(told, dict):
        return
    for part, ours in action_spec(stated).items():
        theirs = told.get(part)
        if isinstance(theirs, dict) and "raw" not in (ours["format"], theirs.get("format")):
            for name in ("format", "dims"):
                if theirs.get(name) != ours[name]:
                    raise BadValue(
                        f"{address.url} says that {part} of its actions has {name} {theirs.get(name)!r}, "
                        f"--server-conf says {ours[name]!r}"
                    )


def _trust(address: ServerAddress) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=address.conf.ca_file)
    except OSError as error:
        raise BadValue(f"ca_file {address.conf.ca_file}: {error.strerror or error}") from error
