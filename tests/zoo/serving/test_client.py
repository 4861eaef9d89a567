"""A policy that others serve: its address, connections that break, and the numbers of the policy loaded here."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.server import ServerConnection, serve

import vla_gym
from vla_gym.errors import BadValue, ServerFailed, UnknownName
from vla_gym.specs import StartState
from vla_policies.actions.noise import EpisodeDecision, EpisodeNoise, SlotNoise
from vla_policies.checkpoint_io.json_records import to_json
from zoo.evaluation.evaluator import EpisodeRecord, NoisePredictor, evaluate
from zoo.serving import client as client_module
from zoo.serving.client import (
    PolicyConnection,
    RemotePolicy,
    ServerAddress,
    ServerConf,
    read_declaration,
    server_address,
)
from zoo.serving.declaration import Declaration
from zoo.serving.local_policy import LocalPolicy
from zoo.serving.protocols import ActionRequest
from zoo.serving.wire import pack_openpi, pack_vla_eval, unpack

from .conftest import OPTIONS, Serving, echo, observation

TOKEN = "0123456789abcdef"  # noqa: S105  made up
STARTS = [StartState(task_id=task, trial_id=trial) for task in range(2) for trial in range(3)]


def address(port: int, **conf: Any) -> ServerAddress:
    return ServerAddress(url=f"ws://127.0.0.1:{port}", conf=ServerConf(**{"attempts": 3, "timeout": 20.0, **conf}))


def asked(connection: PolicyConnection, declaration: Declaration, **change: Any) -> Any:
    connection.ask({**observation(declaration), **change}, (0, 0, 0, 0), deterministic=True)
    return connection.answer()


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module.time, "sleep", lambda seconds: threading.Event().wait(0.01))


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


def test_an_address_and_its_files(tmp_path: Path) -> None:
    for url in ("ws://", "ws://h:port", "ws://h:99999", "ws://h:1/?seed=3", "ws://me:secret@h:1"):
        with pytest.raises(BadValue) as failure:
            server_address(url)
        assert "secret" not in str(failure.value)
    token, conf = tmp_path / "token", tmp_path / "conf.yml"
    token.write_text(TOKEN)
    conf.write_text("protocol: vla-eval\nnames: {image: base_camera}\npolicy: {chunk: 4}")
    found = server_address("ws://h:1", conf_file=str(conf), token_file=str(token))
    assert found.token == TOKEN
    assert TOKEN not in repr(found)
    assert found.session().names["image"] == "base_camera"
    for text, error in (
        ("protocl: openpi", UnknownName),
        ("protocol: grpc", UnknownName),
        ("timeout: 0", BadValue),
        ("names: {camera: x}", UnknownName),
        ("[1]", BadValue),
    ):
        conf.write_text(text)
        with pytest.raises(error):
            server_address("ws://h:1", conf_file=str(conf))


@pytest.mark.parametrize("protocol", ["openpi", "vla-eval"])
def test_the_declaration_of_our_server(serving: Serving, declaration: Declaration, protocol: str) -> None:
    with serving(echo(declaration), declaration, protocol) as (_, port):
        assert read_declaration(address(port, protocol=protocol)) == declaration
        with pytest.raises(BadValue, match="declares its policy itself"):
            read_declaration(address(port, protocol=protocol, policy=to_json(declaration)))


def test_a_server_that_starts_anew_is_asked_again(serving: Serving, declaration: Declaration) -> None:
    with serving(echo(declaration), declaration) as (_, port):
        connection = PolicyConnection(address(port), declaration)
        first = asked(connection, declaration)
    with serving(echo(declaration), declaration, port=port):
        assert np.array_equal(asked(connection, declaration), first)
        connection.close()
    with serving(echo(declaration), replace(declaration, chunk=2), port=port):
        with pytest.raises(ServerFailed, match="another policy"):
            asked(connection, declaration)
        connection.close()


def test_a_broken_connection_costs_one_line(declaration: Declaration, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(logging.getLogger("zoo.serving.client"), "warning", lambda *a: logged.append(a[0] % a[1:]))
    with Foreign(breaks, answers) as server:
        connection = PolicyConnection(address(server.port))
        assert asked(connection, declaration).shape == (3, 2)
        connection.close()
    assert server.connections == 2
    assert len(logged) == 1


def test_time_outs_end_after_all_attempts(declaration: Declaration) -> None:
    with Foreign(hangs) as server:
        connection = PolicyConnection(address(server.port, timeout=0.1))
        with pytest.raises(ServerFailed, match=r"in time.*\(3 attempts\)"):
            asked(connection, declaration)
        connection.close()
    assert server.connections == 3
    with pytest.raises(ServerFailed, match=r"cannot be reached.*\(3 attempts\)"):
        read_declaration(address(server.port))


def test_a_hopeless_request_is_not_repeated(serving: Serving, declaration: Declaration) -> None:
    with (
        serving(echo(declaration), declaration, token=TOKEN) as (_, port),
        pytest.raises(ServerFailed, match=r"401.*--token-file"),
    ):
        read_declaration(address(port))
    with serving(echo(declaration), declaration) as (server, port):
        connection = PolicyConnection(address(port))
        with pytest.raises(ServerFailed, match="1009"):
            asked(connection, declaration, image=np.zeros(declaration.message_bytes(), np.uint8))
        with pytest.raises(ServerFailed, match="observation/state"):
            asked(connection, declaration, state=np.zeros(3, np.float32))
        connection.close()
    assert server.connections == 2


def test_a_foreign_server_needs_a_statement(declaration: Declaration) -> None:
    with Foreign(answers) as server:
        with pytest.raises(BadValue, match="--server-conf"):
            read_declaration(address(server.port))
        assert read_declaration(address(server.port, policy=to_json(declaration))) == declaration
        with pytest.raises(BadValue, match="lacks"):
            read_declaration(address(server.port, policy={"chunk": 4}))


def test_specs_of_a_foreign_hello_are_compared(declaration: Declaration) -> None:
    stated = {
        **to_json(replace(declaration, action_dim=7)),
        "action_spec": {"rotation": "axis_angle", "gripper": "plus_one_closes", "frame": "delta"},
    }

    def hello(sign: str) -> Any:
        def reply(ws: ServerConnection) -> None:
            spec = {"gripper": {"name": "gripper", "dims": 1, "format": f"binary_close_{sign}"}}
            seq = unpack(ws.recv())["seq"]
            ws.send(pack_vla_eval({"type": "hello", "payload": {"action_spec": spec}, "seq": seq, "timestamp": 0.0}))

        return reply

    with Foreign(hello("positive"), hello("negative")) as server:
        where = address(server.port, protocol="vla-eval", policy=stated)
        assert read_declaration(where).action_dim == 7
        with pytest.raises(BadValue, match="binary_close_negative"):
            read_declaration(where)


def played(policy: Any, *, deterministic: bool) -> list[EpisodeRecord]:
    envs = vla_gym.make_vec("Toy-Reach", 4, autoreset_mode="disabled", **OPTIONS)
    try:
        episodes = evaluate(policy, envs, STARTS, deterministic=deterministic, rounds=2, seed=3)
    finally:
        envs.close()
    return [replace(episode, seconds=0.0) for episode in episodes]


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("protocol", ["openpi", "vla-eval"])
def test_an_evaluation_is_the_local_one(
    serving: Serving, toy_policy: LocalPolicy, protocol: str, deterministic: bool
) -> None:
    local = played(toy_policy.policy, deterministic=deterministic)
    with serving(toy_policy.decide, toy_policy.declaration, protocol) as (server, port):
        policy = RemotePolicy(address(port, protocol=protocol), toy_policy.declaration)
        assert isinstance(policy, NoisePredictor)
        assert played(policy, deterministic=deterministic) == local
        assert policy.action_selection_text(deterministic=deterministic) == toy_policy.policy.action_selection_text(
            deterministic=deterministic
        )
        policy.close()
    assert server.connections == 4  # one for each environment, whatever the number of episodes
    assert server.batcher.batches < server.batcher.decisions


def test_episodes_keep_their_connections(serving: Serving, declaration: Declaration) -> None:
    """vla-eval's servers keep a chunk for each connection, so episodes must not share one."""
    seen: list[tuple[int, ...]] = []

    def decide(requests: Sequence[ActionRequest]) -> list[np.ndarray]:
        seen.extend(request.noise for request in requests)
        return echo(declaration)(requests)

    rows = {key: np.stack([value] * 3) for key, value in observation(declaration).items() if key != "instruction"}
    obs = {**rows, "instruction": ("reach red",) * 3}
    with serving(decide, declaration) as (_, port):
        policy = RemotePolicy(address(port), declaration)
        for trials, decision in (((0, 1, 2), 0), ((2, 0, 1), 1), ((1, 3, 2), 2)):
            noise = EpisodeNoise(0, [EpisodeDecision(0, trial, 0, decision) for trial in trials])
            assert policy.predict_with_noise(obs, noise).shape == (3, 3, 2)
        places = {episode[1]: place for episode, place in policy._place.items()}
        assert places == {1: 1, 2: 2, 3: 0}  # 3 took the place of 0
        assert len(policy._connections) == 3
        policy.predict(obs)
        policy.close()
    assert (0, 0, 3, 0, 2) in seen
    with pytest.raises(ValueError, match="of one episode"):
        policy.predict_with_noise(obs, SlotNoise(0, (0, 0), np.array([1, 1, 2])))
