"""The server over loopback: answers, refusals, limits, shared batches and the end."""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from vla_gym.errors import BadValue
from zoo.serving.declaration import Declaration, read_token
from zoo.serving.openpi import OpenpiServerSession
from zoo.serving.protocols import ActionRequest
from zoo.serving.server import Batcher, allowed
from zoo.serving.wire import pack_openpi, unpack

from .conftest import Serving, echo, observation

TOKEN = "0123456789abcdef"  # noqa: S105  made up
NAMES = OpenpiServerSession.NAMES


@contextmanager
def opened(port: int, **options: Any) -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{port}", compression=None, close_timeout=2, **options) as ws:
        ws.recv(timeout=20)
        yield ws


def question(declaration: Declaration, seed: int = 0, **change: Any) -> bytes:
    values = {NAMES[key]: value for key, value in observation(declaration, seed).items()}
    return pack_openpi({**values, **change})


def ask(ws: ClientConnection, message: bytes | str) -> Any:
    ws.send(message)
    answer = ws.recv(timeout=20)
    return answer if isinstance(answer, str) else unpack(answer)


def test_eight_clients_share_batches_and_get_their_own_answers(serving: Serving, declaration: Declaration) -> None:
    def slow(requests: Sequence[ActionRequest]) -> list[np.ndarray]:
        time.sleep(0.02)
        return echo(declaration)(requests)

    def client(port: int, number: int) -> None:
        with opened(port) as ws:
            for turn in range(10 * number, 10 * number + 5):
                answer = ask(ws, question(declaration, turn))["actions"]
                expected = observation(declaration, turn)["image"].mean() / 255
                answered.append(answer.tolist() == [[pytest.approx(expected)] * 2] * 3)

    answered: list[bool] = []
    with serving(slow, declaration, window=0.05) as (server, port):
        threads = [threading.Thread(target=client, args=(port, number)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert answered == [True] * 40
    assert server.batcher.decisions == 40
    assert server.batcher.batches <= 20  # one by one they are 40


def test_a_wrong_message_is_one_line_and_the_next_is_answered(
    serving: Serving, declaration: Declaration, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(logging.getLogger("zoo.serving.server"), "warning", lambda *a: logged.append(a[0] % a[1:]))
    wrong: list[bytes | str] = [
        b"\xc1",
        os.urandom(200),
        "text",
        question(declaration, prompt=""),
        question(declaration, **{"observation/image": np.zeros((720, 1280, 3), np.uint8)}),
        question(declaration, vla_zoo={"\x1b[2J\x1b]0;owned\x07": 1}),  # steers a terminal
    ]
    with serving(echo(declaration), declaration) as (_, port), opened(port) as ws:
        for message in wrong:
            refusal = ask(ws, message)
            assert isinstance(refusal, str)
            assert refusal.isprintable()
            assert "actions" in ask(ws, question(declaration))
    assert len(logged) == len(wrong)
    assert all(line.isprintable() for line in logged)


def test_a_fault_of_the_policy_stays_in_the_log(
    serving: Serving, declaration: Declaration, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(logging.getLogger("zoo.serving.server"), "exception", lambda *a: logged.append(a[0] % a[1:]))

    def broken(requests: Sequence[ActionRequest]) -> list[np.ndarray]:
        raise RuntimeError("secret path /home/me")

    with serving(broken, declaration) as (_, port), opened(port) as ws:
        assert ask(ws, question(declaration)) == "the policy failed; the server's log says why"
    assert len(logged) == 1


def test_a_message_that_is_too_large_ends_its_connection_alone(serving: Serving, declaration: Declaration) -> None:
    with serving(echo(declaration), declaration) as (_, port), opened(port) as other:
        with opened(port) as ws, pytest.raises(ConnectionClosed) as closed:
            ask(ws, b"\0" * (declaration.message_bytes() + 1))
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        assert "actions" in ask(other, question(declaration))


def test_only_with_the_token(serving: Serving, declaration: Declaration) -> None:
    with serving(echo(declaration), declaration, token=TOKEN) as (_, port):
        for header in ({}, {"Authorization": f"Bearer {TOKEN[:-1]}"}):
            with pytest.raises(InvalidStatus) as failure, opened(port, additional_headers=header):
                pass
            assert failure.value.response.status_code == 401
        with opened(port, additional_headers={"Authorization": f"Api-Key {TOKEN}"}) as ws:
            assert "actions" in ask(ws, question(declaration))
        for path in ("/healthz", "/health"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
                assert answer.status == 200


def test_a_full_server_refuses_and_silent_clients_are_closed(serving: Serving, declaration: Declaration) -> None:
    with serving(echo(declaration), declaration, max_clients=2, idle_seconds=0.4) as (_, port):
        with opened(port) as one, opened(port):
            with pytest.raises(InvalidStatus) as failure, opened(port):
                pass
            assert failure.value.response.status_code == 503
            with pytest.raises(ConnectionClosed) as closed:
                one.recv(timeout=20)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.reason == "silent for too long"
        with opened(port) as again:
            assert "actions" in ask(again, question(declaration))


def batched(
    decide: Callable[[Sequence[ActionRequest]], list[np.ndarray]],
    submit: Callable[[Batcher], Awaitable[Any]],
    **how: Any,
) -> tuple[Any, Batcher]:
    async def main() -> tuple[Any, Batcher]:
        batcher = Batcher(decide, **{"window": 0.2, "max_batch": 8, **how})
        task = asyncio.create_task(batcher.run())
        try:
            return await submit(batcher), batcher
        finally:
            task.cancel()
            batcher.close()

    return asyncio.run(main())


def request(declaration: Declaration, brightness: int = 0) -> ActionRequest:
    obs = observation(declaration) | {"image": np.full((8, 8, 3), brightness, np.uint8)}
    return ActionRequest(observation=obs, noise=(0, 0, 0, 0), deterministic=True)


def test_a_client_alone_does_not_wait_and_a_silent_one_costs_a_window(declaration: Declaration) -> None:
    async def submit(batcher: Batcher) -> list[float]:
        waits = []
        for batcher.clients in (1, 2):
            waits.append((await batcher.submit(request(declaration)))[1])
        return waits

    (alone, with_silent), _ = batched(echo(declaration), submit)
    assert alone < 0.15 < with_silent < 0.6


def test_a_request_that_fails_fails_alone(declaration: Declaration) -> None:
    def decide(requests: Sequence[ActionRequest]) -> list[np.ndarray]:
        if any(one.observation["image"].max() == 200 for one in requests):
            raise BadValue("too bright")
        return echo(declaration)(requests)

    async def submit(batcher: Batcher) -> list[Any]:
        batcher.clients = 3
        asked = [batcher.submit(request(declaration, level)) for level in (0, 200, 51)]
        return await asyncio.gather(*asked, return_exceptions=True)

    answers, _ = batched(decide, submit)
    assert isinstance(answers[1], BadValue)
    assert [float(answers[n][0][0, 0]) for n in (0, 2)] == pytest.approx([0.0, 0.2])


def test_a_token_file_holds_one_long_line(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(file) == TOKEN
    for text in ("", "short\n", f"{TOKEN}\n{TOKEN}\n", "two words of it here", "\u00e9" * 20):
        file.write_text(text)
        with pytest.raises(BadValue, match="token"):
            read_token(file)


def test_the_three_ways_to_show_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    compare = hmac.compare_digest
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append((a, b)) or compare(a, b))
    basic = base64.b64encode(f"any:{TOKEN}".encode()).decode()
    for value in (f"Bearer {TOKEN}", f"Api-Key {TOKEN}", f"Basic {basic}"):
        assert allowed({"Authorization": value}, TOKEN)
    for value in ("", TOKEN, f"Bearer {TOKEN[:-1]}", "Basic !!!", "Basic /w==", "Digest x", f"Bearer {TOKEN}\u00e9"):
        assert not allowed({"Authorization": value}, TOKEN)
    assert len(compared) == 8  # in constant time
    assert allowed({}, None)
    twice = Headers([("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer another")])
    assert not allowed(twice, TOKEN)


def test_half_a_message_holds_nobody_up(serving: Serving, declaration: Declaration) -> None:
    with serving(echo(declaration), declaration) as (_, port):
        left = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        for half in left[:10]:
            half.sendall(b"GET / HT")
        with opened(port) as stuck, opened(port) as ws:
            stuck.socket.sendall(b"\x82\xfe\xea\x60" + os.urandom(1000))  # 1,000 of 60,000 bytes of a frame
            started = time.monotonic()
            for _ in range(5):
                assert "actions" in ask(ws, question(declaration))
            assert time.monotonic() - started < 5.0
            stuck.socket.close()
        for half in left:
            half.close()
