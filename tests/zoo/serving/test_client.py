"""A client's connection: opened again where it breaks, given up where that would change nothing."""

from __future__ import annotations

import logging
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.server import ServerConnection, serve

from vla_gym.errors import BadValue, MissingDependency, ServerFailed
from zoo.serving import client as client_module
from zoo.serving.address import ServerAddress, ServerConf
from zoo.serving.client import PolicyConnection, read_declaration
from zoo.serving.declaration import Declaration
from zoo.serving.protocols import ClientSession
from zoo.serving.requests import NoiseKey
from zoo.serving.wire import pack_openpi, pack_vla_eval, unpack

from .conftest import Serving, echo, observation
from .test_access import certificate, server_tls

KEY = NoiseKey(seed=0, numbers=(0, 0, 0))


def address(port: int, **conf: Any) -> ServerAddress:
    return ServerAddress(url=f"ws://127.0.0.1:{port}", conf=ServerConf(**{"attempts": 3, "timeout": 5.0, **conf}))


def asked(connection: PolicyConnection, declaration: Declaration) -> Any:
    def build(session: ClientSession) -> list[bytes]:
        return [session.observation(observation(declaration), KEY, deterministic=True)]

    connection.ask(build)
    return connection.answer()["actions"]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module.time, "sleep", lambda seconds: None)


class Foreign:
    """A server of another make; `script` answers the n-th connection."""

    def __init__(self, *script: Any) -> None:
        self.script, self.connections = script, 0
        self._server = serve(self._serve, "127.0.0.1", 0, compression=None)
        self.port = self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever).start()

    def _serve(self, ws: ServerConnection) -> None:
        number = min(self.connections, len(self.script) - 1)
        self.connections += 1
        self.script[number](ws)

    def __enter__(self) -> Foreign:
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()


def answers(ws: ServerConnection) -> None:
    ws.send(pack_openpi({}))
    for _ in ws:
        ws.send(pack_openpi({"actions": np.zeros((3, 2))}))


def breaks(ws: ServerConnection) -> None:
    ws.send(pack_openpi({}))
    ws.recv()
    ws.socket.shutdown(socket.SHUT_RDWR)


def hangs(ws: ServerConnection) -> None:
    ws.send(pack_openpi({}))
    for _ in ws:
        pass


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5h://127.0.0.1:9"])
def test_this_machine_is_reached_without_its_proxy(
    proxy: str, serving: Serving, declaration: Declaration, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("all_proxy", proxy)
    monkeypatch.setenv("https_proxy", proxy)
    with serving(echo(declaration), declaration) as server:
        assert read_declaration(address(server.port)) == declaration


def test_a_socks_proxy_without_its_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs_socks(*args: Any, **how: Any) -> Any:
        assert how["proxy"] is True
        raise ImportError("connecting through a SOCKS proxy requires python-socks")

    monkeypatch.setattr(client_module, "connect", needs_socks)
    far = ServerAddress(url="ws://robot.local:8000")
    with pytest.raises(MissingDependency, match=r"^ws://robot.local:8000: connecting .*: pip install python-socks"):
        read_declaration(far)


def test_the_declaration_of_our_server(serving: Serving, declaration: Declaration) -> None:
    for protocol in ("openpi", "vla-eval"):
        with serving(echo(declaration), declaration, protocol) as server:
            assert read_declaration(address(server.port, protocol=protocol)) == declaration
            stated = address(server.port, protocol=protocol, policy=declaration.to_json())
            with pytest.raises(BadValue, match="declares its policy itself"):
                read_declaration(stated)


def test_a_server_that_starts_anew_is_asked_again(serving: Serving, declaration: Declaration) -> None:
    with serving(echo(declaration), declaration) as server:
        connection = PolicyConnection(address(server.port), declaration)
        first = asked(connection, declaration)
    with serving(echo(declaration), declaration, port=server.port):
        assert np.array_equal(asked(connection, declaration), first)
        connection.close()
    with serving(echo(declaration), replace(declaration, chunk=2), port=server.port):
        with pytest.raises(ServerFailed, match="now serves another policy"):
            asked(connection, declaration)
        connection.close()


def test_a_broken_connection_costs_one_line(declaration: Declaration, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    logger = logging.getLogger("zoo.serving.client")
    monkeypatch.setattr(logger, "warning", lambda text, *args: said.append(text % args))
    with Foreign(breaks, answers) as server:
        connection = PolicyConnection(address(server.port))
        assert asked(connection, declaration).shape == (3, 2)
        assert server.connections == 2
        connection.close()
    assert len(said) == 1
    assert "closed the connection" in said[0]


def test_time_outs_end_after_all_attempts(declaration: Declaration) -> None:
    with Foreign(hangs) as server:
        connection = PolicyConnection(address(server.port, timeout=0.1))
        with pytest.raises(ServerFailed, match=r"did not answer in time.*\(3 attempts\)"):
            asked(connection, declaration)
        assert server.connections == 3
        connection.close()


def test_nobody_there(unused_tcp_port_of: int) -> None:
    with pytest.raises(ServerFailed, match=r"cannot be reached.*\(3 attempts\)"):
        read_declaration(address(unused_tcp_port_of))


@pytest.fixture
def unused_tcp_port_of() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_what_no_further_attempt_changes_is_said_at_once(serving: Serving, declaration: Declaration) -> None:
    with (
        serving(echo(declaration), declaration, token="0123456789abcdef") as server,  # noqa: S106  made up
        pytest.raises(ServerFailed, match="refuses the token"),
    ):
        read_declaration(address(server.port))
    assert server.metrics.refused["wrong or missing token"] == 1
    with serving(echo(declaration), declaration) as server:
        connection = PolicyConnection(address(server.port))
        connection.ask(lambda session: [b"\0" * (declaration.message_bytes() + 1)])
        with pytest.raises(ServerFailed, match="takes smaller messages only"):
            connection.answer()
        connection.ask(lambda session: [pack_openpi({"prompt": "x"})])
        with pytest.raises(ServerFailed, match="refused: the observation lacks the array"):
            connection.answer()
        connection.close()


def test_a_foreign_server_needs_a_statement(declaration: Declaration) -> None:
    with Foreign(answers) as server:
        with pytest.raises(BadValue, match="does not declare what it reads"):
            read_declaration(address(server.port))
        stated = declaration.to_json()
        assert read_declaration(address(server.port, policy=stated)) == declaration


def test_specs_of_a_foreign_hello_are_compared(declaration: Declaration) -> None:
    stated = {
        **replace(declaration, action_dim=7).to_json(),
        "action_spec": {"rotation": "axis_angle", "gripper": "plus_one_closes", "frame": "delta"},
    }

    def hello(sign: str) -> Any:
        def reply(ws: ServerConnection) -> None:
            spec = {"gripper": {"name": "gripper", "dims": 1, "format": f"binary_close_{sign}"}}
            seq = unpack(ws.recv())["seq"]
            payload = {"harness_version": "0", "protocol_version": 1, "action_spec": spec}
            ws.send(pack_vla_eval({"type": "hello", "payload": payload, "seq": seq, "timestamp": 0.0}))

        return reply

    with Foreign(hello("positive"), hello("negative")) as server:
        where = address(server.port, protocol="vla-eval", policy=stated)
        assert read_declaration(where).action_dim == 7
        with pytest.raises(BadValue, match="says that gripper of its actions has format 'binary_close_negative'"):
            read_declaration(where)


def test_a_certificate_that_is_not_trusted(serving: Serving, declaration: Declaration, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with serving(echo(declaration), declaration, tls=server_tls(str(cert), str(key))) as server:
        url = f"wss://127.0.0.1:{server.port}"
        trusting = ServerAddress(url=url, conf=ServerConf(ca_file=str(cert)))
        assert read_declaration(trusting) == declaration
        with pytest.raises(ServerFailed, match="ca_file"):
            read_declaration(ServerAddress(url=url))
        with pytest.raises(BadValue, match="ca_file"):
            read_declaration(ServerAddress(url=url, conf=ServerConf(ca_file=str(tmp_path / "none"))))
