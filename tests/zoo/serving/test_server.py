"""The server over loopback: answers, refusals, limits, and a stop that loses no request under way."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from vla_gym.errors import BadValue
from zoo.serving.access import server_tls
from zoo.serving.declaration import Declaration
from zoo.serving.openpi import OpenpiServerSession
from zoo.serving.requests import Decision, Request
from zoo.serving.server import MOST_FAULTS, PolicyServer, ServerSettings
from zoo.serving.wire import pack_openpi, unpack

from .conftest import Serving, echo, observation
from .test_access import certificate

TOKEN = "0123456789abcdef"  # noqa: S105  made up
NAMES = OpenpiServerSession.NAMES


def opened(server: PolicyServer, path: str = "", scheme: str = "ws", **options: Any) -> ClientConnection:
    url = f"{scheme}://127.0.0.1:{server.port}{path}"
    return connect(url, compression=None, close_timeout=2, **options)


def question(declaration: Declaration, seed: int = 0, **change: Any) -> bytes:
    values = {NAMES[key]: value for key, value in observation(declaration, seed).items()}
    return pack_openpi({**values, **change})


def ask(ws: ClientConnection, message: bytes | str) -> Any:
    ws.send(message)
    answer = ws.recv(timeout=20)
    return answer if isinstance(answer, str) else unpack(answer)


def http(server: PolicyServer, path: str, token: str | None = None) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310  loopback
        return str(answer.read().decode())


def test_a_client_is_greeted_and_answered(serving: Serving, declaration: Declaration) -> None:
    with serving(echo(declaration), declaration) as server, opened(server) as ws:
        greeting = unpack(ws.recv(timeout=20))
        assert greeting["vla_zoo"] == declaration.to_json()
        assert greeting["stream"] == {"seed": 0, "slot": 0}
        expected = observation(declaration)["image"].mean() / 255
        assert ask(ws, question(declaration))["actions"].tolist() == [[pytest.approx(expected)] * 2] * 3
        with opened(server, "/?seed=7") as other:
            assert unpack(other.recv(timeout=20))["stream"] == {"seed": 7, "slot": 0}
        assert json.loads(http(server, "/metadata")) == declaration.to_json()
        assert "vla_zoo_serve_answers_total 1\n" in http(server, "/metrics")
        assert json.loads(http(server, "/healthz")) == json.loads(http(server, "/health")) == {"status": "ok"}
    assert server.metrics.answered == 1


def test_eight_clients_share_batches(serving: Serving, declaration: Declaration) -> None:
    def slow(requests: Sequence[Request]) -> list[Decision]:
        time.sleep(0.02)
        return echo(declaration)(requests)

    def client(server: PolicyServer, number: int) -> None:
        with opened(server) as ws:
            ws.recv(timeout=20)
            for turn in range(5):
                answer = ask(ws, question(declaration, 10 * number + turn))
                brightness = observation(declaration, 10 * number + turn)["image"].mean() / 255
                assert answer["actions"][0, 0] == pytest.approx(brightness)
                answered.append(number)

    answered: list[int] = []
    with serving(slow, declaration, window=0.05) as server:
        threads = [threading.Thread(target=client, args=(server, number)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(answered) == 40
    assert server.metrics.decisions == 40
    assert server.metrics.batch_size.counts[-1] <= 20  # 2 or more together; one by one they are 40


def test_a_wrong_message_is_one_line_and_the_next_is_answered(
    serving: Serving, declaration: Declaration, caplog: pytest.LogCaptureFixture
) -> None:
    wrong: list[tuple[bytes | str, str]] = [
        (b"\xc1", "no msgpack message"),
        (os.urandom(200), ""),
        ("text", "a text message"),
        (question(declaration, prompt=""), "instruction ''"),
        (question(declaration, **{"observation/image": np.zeros((9, 8, 3), np.uint8)}), "got [9, 8, 3]"),
        (question(declaration, **{"observation/image": np.zeros((720, 1280, 3), np.uint8)}), "got [720, 1280, 3]"),
    ]
    with serving(echo(declaration), declaration) as server, opened(server) as ws:
        ws.recv(timeout=20)
        for message, said in wrong:
            refusal = ask(ws, message)
            assert isinstance(refusal, str)
            assert said in refusal
            assert "\n" not in refusal
            assert "actions" in ask(ws, question(declaration))
    assert server.metrics.refused["message"] == len(wrong)


def test_a_refusal_holds_nothing_that_steers_a_terminal(
    serving: Serving, declaration: Declaration, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(logging.getLogger("zoo.serving.server"), "warning", lambda *a: logged.append(a[0] % a[1:]))
    with serving(echo(declaration), declaration) as server, opened(server) as ws:
        ws.recv(timeout=20)
        refusal = ask(ws, question(declaration, vla_zoo={"\x1b[2J\x1b]0;owned\x07": 1}))
    assert refusal.isprintable()
    assert "x1b[2J" in refusal
    assert len(logged) == 1
    assert logged[0].isprintable()


def test_a_fault_of_the_policy_stays_in_the_log(
    serving: Serving, declaration: Declaration, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(logging.getLogger("zoo.serving.server"), "exception", lambda *a: logged.append(a[0] % a[1:]))

    def broken(requests: Sequence[Request]) -> list[Decision]:
        raise RuntimeError("secret path /home/me")

    with serving(broken, declaration) as server, opened(server) as ws:
        ws.recv(timeout=20)
        assert ask(ws, question(declaration)) == "the policy failed; the server's log says why"
    assert len(logged) == 1
    assert server.metrics.refused["fault of the server"] == 1


def test_too_many_faults_and_too_large_messages_end_a_connection(serving: Serving, declaration: Declaration) -> None:
    with serving(echo(declaration), declaration) as server:
        with opened(server) as ws:
            ws.recv(timeout=20)
            for _ in range(MOST_FAULTS):
                ask(ws, b"\xc1")
            with pytest.raises(ConnectionClosed) as closed:
                ws.recv(timeout=20)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008
        with opened(server) as ws:
            ws.recv(timeout=20)
            with pytest.raises(ConnectionClosed) as closed:
                ask(ws, b"\0" * (declaration.message_bytes() + 1))
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009
        with opened(server) as ws:
            ws.recv(timeout=20)
            assert "actions" in ask(ws, question(declaration))


def test_only_with_the_token(serving: Serving, declaration: Declaration) -> None:
    with serving(echo(declaration), declaration, token=TOKEN) as server:
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {TOKEN[:-1]}"}):
            with pytest.raises(InvalidStatus) as failure, opened(server, additional_headers=header):
                pass
            assert failure.value.response.status_code == 401
        for header in ({"Authorization": f"Bearer {TOKEN}"}, {"Authorization": f"Api-Key {TOKEN}"}):
            with opened(server, additional_headers=header) as ws:
                ws.recv(timeout=20)
                assert "actions" in ask(ws, question(declaration))
        assert json.loads(http(server, "/healthz")) == {"status": "ok"}
        for path in ("/metrics", "/metadata"):
            with pytest.raises(HTTPError, match="401"):
                http(server, path)
            assert http(server, path, TOKEN)
    assert server.metrics.refused["wrong or missing token"] == 5


def test_the_house_is_full_and_the_silent_are_shown_out(serving: Serving, declaration: Declaration) -> None:
    with serving(echo(declaration), declaration, max_clients=2, idle_seconds=0.4) as server:
        with opened(server) as one, opened(server):
            one.recv(timeout=20)
            with pytest.raises(InvalidStatus) as failure, opened(server):
                pass
            assert failure.value.response.status_code == 503
            with pytest.raises(ConnectionClosed) as closed:
                one.recv(timeout=20)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.reason == "silent for too long"
        with opened(server) as again:
            again.recv(timeout=20)
            assert "actions" in ask(again, question(declaration))


def test_half_a_message_holds_nobody_up(serving: Serving, declaration: Declaration) -> None:
    with serving(echo(declaration), declaration) as server:
        left = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
        for half in left[:10]:
            half.sendall(b"GET / HT")
        with opened(server) as stuck, opened(server) as ws:
            stuck.recv(timeout=20)
            stuck.socket.sendall(b"\x82\xfe\xea\x60" + os.urandom(1000))  # 1,000 of 60,000 bytes of a frame
            ws.recv(timeout=20)
            started = time.monotonic()
            for _ in range(5):
                assert "actions" in ask(ws, question(declaration))
            assert time.monotonic() - started < 5.0
            stuck.socket.close()
        for half in left:
            half.close()


def test_a_process_without_a_file_left_says_so_once(
    serving: Serving, declaration: Declaration, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(logging.getLogger("asyncio"), "error", lambda *a, **_: told.append(a[0]))
    monkeypatch.setattr(logging.getLogger("zoo.serving.server"), "warning", lambda *a: told.append(a[0] % a[1:]))
    full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    with serving(echo(declaration), declaration) as server:
        for error in (full, full, full, ValueError("another")):  # asyncio tells 512 times a second
            context = {"message": "socket.accept() out of system resource", "exception": error}
            server._loop.call_soon_threadsafe(server._loop.call_exception_handler, context)
        with opened(server) as ws:
            ws.recv(timeout=20)
    assert len(told) == 2
    assert "new connections wait: Too many open files" in told[0]
    assert "out of system resource" in told[1]


def test_a_stop_answers_what_is_under_way(serving: Serving, declaration: Declaration) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(requests: Sequence[Request]) -> list[Decision]:
        begun.set()
        go_on.wait(20)
        return echo(declaration)(requests)

    with serving(slow, declaration) as server, opened(server) as ws, opened(server) as idle:
        ws.recv(timeout=20)
        idle.recv(timeout=20)
        ws.send(question(declaration))
        assert begun.wait(20)
        server.stop()
        with pytest.raises(ConnectionClosed) as closed:
            idle.recv(timeout=20)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
        go_on.set()
        assert "actions" in unpack(ws.recv(timeout=20))
        with pytest.raises(ConnectionClosed):
            ws.recv(timeout=20)


def test_tls(serving: Serving, declaration: Declaration, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with serving(echo(declaration), declaration, tls=server_tls(str(cert), str(key))) as server:
        trusted = ssl.create_default_context(cafile=str(cert))
        with opened(server, scheme="wss", ssl=trusted) as ws:
            ws.recv(timeout=20)
            assert "actions" in ask(ws, question(declaration))
        with pytest.raises(ssl.SSLError), opened(server, scheme="wss", ssl=ssl.create_default_context()):
            pass


def test_a_port_that_is_taken_is_said(declaration: Declaration) -> None:
    import asyncio

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = PolicyServer(echo(declaration), declaration, OpenpiServerSession, NAMES, ServerSettings(port=port))
        with pytest.raises(BadValue, match=f"cannot listen on 127.0.0.1:{port}.*another --port"):
            asyncio.run(server.run())
