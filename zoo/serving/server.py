"""The policy server: connections of clients, each with its own session, in front of one batcher.

A slow client delays only itself: its messages are limited in size, read one at a time and parsed in threads, and it has
a time limit. Errors reach a client as one line; causes stay in the log.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus

import numpy as np
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from vla_gym.errors import BadValue, VLAZooError, one_line
from zoo.serving.declaration import Declaration, ServerSettings
from zoo.serving.openpi import OpenpiServerSession
from zoo.serving.protocols import ActionRequest, ServerSession
from zoo.serving.vla_eval import VlaEvalServerSession

LOGGER = logging.getLogger(__name__)
_LIBRARY_LOG = LOGGER.getChild("websockets")
_LIBRARY_LOG.setLevel(logging.CRITICAL)  # it logs a traceback for every broken handshake
SESSIONS: dict[str, type[ServerSession]] = {"openpi": OpenpiServerSession, "vla-eval": VlaEvalServerSession}
"""Protocol -> the server's side of a connection."""

Decide = Callable[[Sequence[ActionRequest]], list[np.ndarray]]
"""Returns a chunk of actions `[K, A]` in [-1, 1], float32, for each request."""


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
        self.connections = 0
        """Connections opened since the start."""
        self._declaration, self._session, self._names, self._settings = declaration, session, names, settings
        self.batcher = Batcher(decide, window=settings.window, max_batch=settings.max_batch)
        self._stopping = asyncio.Event()

    async def run(self, listener: socket.socket) -> None:
        """Serve at a bound socket until `stop`."""
        self._loop = asyncio.get_running_loop()
        deciding = asyncio.create_task(self.batcher.run())
        try:
            async with serve(
                self._serve_client,
                sock=listener,
                process_request=self._admit,
                compression=None,
                max_size=self._declaration.message_bytes(),
                max_queue=1,
                # A simulator may be silent for minutes while it starts; the idle time closes broken connections.
                ping_interval=None,
                close_timeout=2,
                server_header="vla-zoo",
                logger=_LIBRARY_LOG,
            ):
                await self._stopping.wait()
        finally:
            deciding.cancel()
            self.batcher.close()
        counts = self.connections, self.batcher.decisions, self.batcher.batches
        LOGGER.info("stopped: %d connections, %d decisions in %d batches", *counts)

    def stop(self) -> None:
        """Close all connections and end `run`; any thread may call it."""
        self._loop.call_soon_threadsafe(self._stopping.set)

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path in ("/healthz", "/health"):  # of openpi's and vla-eval's clients
            return connection.respond(HTTPStatus.OK, "ok\n")
        if not allowed(request.headers, self._settings.token):
            return connection.respond(HTTPStatus.UNAUTHORIZED, "wrong or missing token\n")
        if self.batcher.clients >= self._settings.max_clients:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "too many clients\n")
        return None

    async def _serve_client(self, ws: ServerConnection) -> None:
        number = self.connections
        self.connections += 1
        self.batcher.clients += 1
        name = f"client {number} {ws.remote_address}"
        session = self._session(self._declaration, self._names, self._settings.seed, number)
        LOGGER.info("%s connected", name)
        try:
            await self._converse(ws, session, name)
        except ConnectionClosed as closed:
            reason = str(closed)
        except TimeoutError:
            reason = f"silent for {self._settings.idle_seconds:g} s"
            await ws.close(1000, "silent for too long")
        finally:
            self.batcher.clients -= 1
        LOGGER.info("%s left: %s", name, reason)

    async def _converse(self, ws: ServerConnection, session: ServerSession, name: str) -> None:
        # Until the connection closes or the client is silent (`TimeoutError`).
        message: bytes | str | None = session.greeting()
        while True:
            async with asyncio.timeout(self._settings.idle_seconds):
                if message is not None:
                    await ws.send(message)
                data = await ws.recv()
            message = await self._answer(session, data, name)

    async def _answer(self, session: ServerSession, data: bytes | str, name: str) -> bytes | str | None:
        try:
            if isinstance(data, str):
                raise BadValue("a text message; requests are binary msgpack messages")
            asked = await asyncio.to_thread(session.receive, data)
            if isinstance(asked, ActionRequest):
                asked = session.answer(*await self.batcher.submit(asked))
            return asked
        except VLAZooError as error:
            reason = one_line(str(error))
            LOGGER.warning("%s refused: %s", name, reason[:300])
        except Exception:
            reason = "the policy failed; the server's log says why"
            LOGGER.exception("%s met a fault of the server", name)
        return session.refusal(reason)


@dataclass
class _Waiting:
    request: ActionRequest
    answer: asyncio.Future[np.ndarray]
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """Decides for waiting requests in a thread; a batch begins once the policy is free.

    It holds the oldest request for `window` seconds at most, less once the batch is full or every client has asked: a
    client alone never waits for others.
    """

    def __init__(self, decide: Decide, *, window: float, max_batch: int) -> None:
        self.clients = 0
        """Open connections, set by the server."""
        self.decisions, self.batches = 0, 0
        """Requests decided and batches they came in."""
        self._decide, self._window, self._max_batch = decide, window, max_batch
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="policy")

    async def submit(self, request: ActionRequest) -> tuple[np.ndarray, float]:
        """Return the policy's actions for a request and the seconds they took; raise what the policy raised for it."""
        waiting = _Waiting(request, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._arrived.set()
        return await waiting.answer, time.monotonic() - waiting.since

    async def run(self) -> None:
        """Decide until cancelled."""
        while True:
            await self._gather()
            batch = [self._waiting.popleft() for _ in range(min(self._max_batch, len(self._waiting)))]
            requests = [one.request for one in batch]
            outcomes = await asyncio.get_running_loop().run_in_executor(self._thread, self._outcomes, requests)
            self.decisions, self.batches = self.decisions + len(batch), self.batches + 1
            for one, outcome in zip(batch, outcomes, strict=True):
                if one.answer.done():  # its client has gone
                    continue
                if isinstance(outcome, Exception):
                    one.answer.set_exception(outcome)
                else:
                    one.answer.set_result(outcome)

    def close(self) -> None:
        """End the policy's thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _gather(self) -> None:
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        until = self._waiting[0].since + self._window
        while len(self._waiting) < min(self._max_batch, self.clients) and (left := until - time.monotonic()) > 0:
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), left)
            except TimeoutError:
                return

    def _outcomes(self, requests: Sequence[ActionRequest]) -> list[np.ndarray | Exception]:
        # Together; if that fails, one by one, so that only requests at fault fail.
        try:
            return list(self._decide(requests))
        except Exception as error:  # noqa: BLE001  handed to the clients' connections, which log it
            if len(requests) == 1:
                return [error]
        return [outcome for request in requests for outcome in self._outcomes([request])]


def allowed(headers: Mapping[str, str], token: str | None) -> bool:
    """Whether a request shows the server's token, compared in constant time; always where there is none.

    Clients send `Authorization: Bearer TOKEN`, `Api-Key TOKEN` as openpi's client writes it, or `Basic` with the token
    as password, which is what a client without a setting for it sends for `ws://user:TOKEN@host`.
    """
    if token is None:
        return True
    try:
        scheme, _, value = headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "basic":
            value = base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
    except (LookupError, binascii.Error, UnicodeDecodeError):  # LookupError: several headers of this name
        return False
    shown = value.strip() if scheme.lower() in ("bearer", "api-key", "basic") else ""
    return hmac.compare_digest(shown.encode(), token.encode())
