"""The policy server: connections of clients, each with its own session, in front of one batcher.

Nobody waits for a client but that client's own connection: its messages are limited in size and read one at a time,
parsed in threads, and its answer has a time limit. Errors reach a client as one line; causes stay in the log.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response

from vla_gym.errors import BadValue, VLAZooError, one_line, os_reason
from zoo.serving.access import HEALTH, METADATA, METRICS, allowed, seed_in
from zoo.serving.batching import Batcher, Decide
from zoo.serving.declaration import Declaration
from zoo.serving.metrics import Metrics
from zoo.serving.protocols import ServerSession
from zoo.serving.requests import NoiseStream, Request

LOGGER = logging.getLogger(__name__)
MOST_FAULTS = 20
"""Refused messages in a row after which a connection is closed."""
SEND_SECONDS = 20.0
"""How long a client may take to read an answer."""
FULL_SECONDS = 60.0
"""How often at most the log says that no more connections can be opened."""
STOP_SECONDS = 30.0
"""How long requests under way are given when the server stops."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Where and how a policy is served."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    token: str | None = None
    """What clients must show; None lets everybody in."""
    tls: ssl.SSLContext | None = None
    """Certificate and key; None speaks plain ws://."""
    window: float = 0.004
    """Longest time a request waits for others to share its batch, seconds."""
    max_batch: int = 32
    """Most requests decided together."""
    max_clients: int = 256
    """Most connections that are open at once."""
    idle_seconds: float = 600.0
    """How long a connection may be silent."""
    seed: int = 0
    """Seed of the streams of clients that state none."""


class PolicyServer:
    """One policy at one address."""

    def __init__(
        self,
        decide: Decide,
        declaration: Declaration,
        session: type[ServerSession],
        names: Mapping[str, str],
        settings: ServerSettings,
    ) -> None:
        self.metrics = Metrics()
        self.port = settings.port
        """The port it listens on, once it does."""
        self._declaration, self._session, self._names, self._settings = declaration, session, names, settings
        self._decide = decide
        self._stopping = asyncio.Event()
        self._idle: set[ServerConnection] = set()
        self._told_full = -FULL_SECONDS

    async def run(self, *, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`; requests under way are then answered. Raises `BadValue` where it cannot listen."""
        settings = self._settings
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._report)
        self._batcher = Batcher(
            self._decide, window=settings.window, max_batch=settings.max_batch, metrics=self.metrics
        )
        deciding = asyncio.create_task(self._batcher.run())
        try:
            server = await self._listen()
        except OSError as error:
            deciding.cancel()
            self._batcher.close()
            where = f"{settings.host}:{settings.port}"
            raise BadValue(f"cannot listen on {where}: {error.strerror or error}; choose another --port") from error
        self.port = server.sockets[0].getsockname()[1]
        on_ready()
        try:
            await self._stopping.wait()
            await self._drain(server)
        finally:
            deciding.cancel()
            self._batcher.close()

    def stop(self) -> None:
        """Take no more requests and end `run` once those under way are answered; any thread may call it."""
        self._loop.call_soon_threadsafe(self._stopping.set)

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log one line, once in `FULL_SECONDS`, where asyncio tells of every try to accept a connection."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif loop.time() >= self._told_full + FULL_SECONDS:
            self._told_full = loop.time()
            LOGGER.warning("new connections wait: %s", os_reason(error))

    async def _listen(self) -> Server:
        settings = self._settings
        return await serve(
            self._serve_client,
            settings.host,
            settings.port,
            ssl=settings.tls,
            process_request=self._admit,
            compression=None,
            max_size=self._declaration.message_bytes(),
            max_queue=1,
            # A simulator may be silent for minutes while it starts; the idle time closes what has gone.
            ping_interval=None,
            close_timeout=2,
            server_header="vla-zoo",
            logger=_library_log(),
            backlog=512,
        )

    async def _drain(self, server: Server) -> None:
        server.close(close_connections=False)
        closing = [asyncio.create_task(ws.close(1001, "the server stops")) for ws in self._idle]
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await asyncio.gather(*closing, return_exceptions=True)
                while server.connections:
                    await asyncio.sleep(0.02)
        server.close()
        await server.wait_closed()
        LOGGER.info("stopped: %s", self.metrics.summary())

    # HTTP ---------------------------------------------------------------------------------------------

    def _admit(self, connection: ServerConnection, request: HttpRequest) -> Response | None:
        """Answer a plain request, or refuse a connection; None lets it in."""
        path = request.path.partition("?")[0]
        if path in HEALTH:
            if self._stopping.is_set():
                return _respond(connection, HTTPStatus.SERVICE_UNAVAILABLE, {"status": "stopping"})
            return _respond(connection, HTTPStatus.OK, {"status": "ok"})
        if not allowed(request.headers, self._settings.token):
            return self._turn_away(connection, HTTPStatus.UNAUTHORIZED, "wrong or missing token")
        if path == METADATA:
            return _respond(connection, HTTPStatus.OK, self._declaration.to_json())
        if path == METRICS:
            return connection.respond(HTTPStatus.OK, self.metrics.text())
        try:
            seed_in(request.path)
        except BadValue as error:
            return self._turn_away(connection, HTTPStatus.BAD_REQUEST, str(error))
        if self._stopping.is_set():
            return self._turn_away(connection, HTTPStatus.SERVICE_UNAVAILABLE, "the server stops")
        if self.metrics.clients >= self._settings.max_clients:
            return self._turn_away(connection, HTTPStatus.SERVICE_UNAVAILABLE, "too many clients")
        return None

    def _turn_away(self, connection: ServerConnection, status: HTTPStatus, reason: str) -> Response:
        self.metrics.refused[reason] += 1
        LOGGER.warning("%s turned away: %s", _peer(connection), reason)
        return connection.respond(status, f"{reason}\n")

    # Connections --------------------------------------------------------------------------------------

    async def _serve_client(self, ws: ServerConnection) -> None:
        number = self.metrics.connections
        self.metrics.connections += 1
        self.metrics.clients += 1
        name = f"client {number} ({_peer(ws)})"
        seed = seed_in(ws.request.path) if ws.request is not None else None
        stream = NoiseStream(seed=self._settings.seed, slot=number) if seed is None else NoiseStream(seed=seed, slot=0)
        ws.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        LOGGER.info("%s connected", name)
        try:
            reason = await self._converse(ws, self._session(self._declaration, self._names, stream), number, name)
        except ConnectionClosed as closed:
            reason = _closed_because(closed)
        except TimeoutError:
            reason = f"it did not read its answer in {SEND_SECONDS:g} s"
            self.metrics.refused["answer not read"] += 1
        finally:
            self.metrics.clients -= 1
            self._idle.discard(ws)
            self._batcher.forget(number)
        LOGGER.info("%s left: %s", name, reason)

    async def _converse(self, ws: ServerConnection, session: ServerSession, number: int, name: str) -> str:
        """Answer message after message; returns why it ended."""
        await self._send(ws, session.greeting())
        faults = 0
        while not self._stopping.is_set():
            self._idle.add(ws)
            try:
                async with asyncio.timeout(self._settings.idle_seconds):
                    data = await ws.recv()
            except TimeoutError:
                self.metrics.refused["silent"] += 1
                await ws.close(1000, "silent for too long")
                return f"silent for {self._settings.idle_seconds:g} s"
            self._idle.discard(ws)
            if await self._answer(ws, session, data, number, name):
                faults = 0
                continue
            faults += 1
            if faults >= MOST_FAULTS:
                await ws.close(1008, "too many messages that cannot be answered")
                return f"{faults} messages in a row that cannot be answered"
        await ws.close(1001, "the server stops")
        return "the server stops"

    async def _answer(
        self, ws: ServerConnection, session: ServerSession, data: bytes | str, number: int, name: str
    ) -> bool:
        """Answer one message; False where it was refused."""
        started = time.monotonic()
        try:
            if isinstance(data, str):
                raise BadValue("a text message; requests are binary msgpack messages")
            asked = await asyncio.to_thread(session.receive, data)
            if isinstance(asked, Request):
                asked = session.answer(await self._batcher.submit(number, asked))
        except VLAZooError as error:
            reason = one_line(str(error))
            self.metrics.refused["message"] += 1
            LOGGER.warning("%s refused: %s", name, reason[:300])
            await self._send(ws, session.refusal(reason))
            return False
        except Exception:
            self.metrics.refused["fault of the server"] += 1
            LOGGER.exception("%s met a fault of the server", name)
            await self._send(ws, session.refusal("the policy failed; the server's log says why"))
            return False
        await self._send(ws, asked)
        if asked is not None:
            self.metrics.answered += 1
            self.metrics.request_seconds.add(time.monotonic() - started)
        return True

    async def _send(self, ws: ServerConnection, message: bytes | str | None) -> None:
        if message is not None:
            async with asyncio.timeout(SEND_SECONDS):
                await ws.send(message)


def _respond(connection: ServerConnection, status: HTTPStatus, values: Mapping[str, Any]) -> Response:
    response = connection.respond(status, json.dumps(values) + "\n")
    del response.headers["Content-Type"]
    response.headers["Content-Type"] = "application/json"
    return response


def _peer(connection: ServerConnection) -> str:
    address = connection.remote_address
    return f"{address[0]}:{address[1]}" if address else "unknown"


def _closed_because(closed: ConnectionClosed) -> str:
    if closed.sent is not None and closed.sent.code == 1009:
        return "its message was too large"
    if closed.rcvd is None:
        return f"the connection broke{f' ({closed.sent.reason})' if closed.sent and closed.sent.reason else ''}"
    return f"closed with {closed.rcvd.code}"


class _OneLine(logging.Filter):
    """Reduces the library's reports of broken handshakes to their causes."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            record.msg = f"{record.getMessage()}: {' '.join(str(error.__cause__ or error).split())[:200]}"
            record.args, record.exc_info = (), None
        return record.levelno >= logging.WARNING


def _library_log() -> logging.Logger:
    logger = LOGGER.getChild("websockets")
    if not logger.filters:
        logger.addFilter(_OneLine())
    return logger
