"""The loops of docs/serving.md, run as they stand against a server, with a robot that only counts."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
from websockets.sync.client import connect

from zoo.serving.address import ServerConf
from zoo.serving.declaration import Declaration
from zoo.serving.requests import Decision, Request
from zoo.serving.wire import pack_openpi, unpack
from zoo.yaml_text import parse_yaml

from .conftest import Serving

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")
ROBOT_LOOP, PLAY = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.M | re.S)


class Client:
    """`openpi_client.WebsocketClientPolicy` as far as the page uses it, with the same messages."""

    def __init__(self, host: str, port: int) -> None:
        self._opening = connect(f"ws://{host}:{port}", compression=None)
        self._ws = self._opening.__enter__()
        self._metadata = unpack(self._ws.recv(timeout=20))

    def get_server_metadata(self) -> Any:
        return self._metadata

    def infer(self, obs: dict[str, Any]) -> Any:
        self._ws.send(pack_openpi(obs))
        return unpack(self._ws.recv(timeout=20))

    def close(self) -> None:
        self._opening.__exit__(None, None, None)


class Robot:
    """Remembers what it was told."""

    ACTIONS: ClassVar[dict[str, Any]] = {}
    STATE = "hand position 2"
    made: ClassVar[list[Robot]] = []

    def __init__(self) -> None:
        self.actions: list[float] = []
        self.made.append(self)

    def camera(self, side: int) -> np.ndarray:
        return np.zeros((side, side, 3), np.uint8)

    def state(self) -> np.ndarray:
        return np.zeros(2)

    def act(self, action: np.ndarray) -> None:
        self.actions.append(round(float(action[0]), 2))

    def done(self) -> bool:
        return len(self.actions) >= 7


def counted(declaration: Declaration) -> Any:
    """A policy whose n-th chunk is n.0, n.1, n.2 tenths."""
    number = 0

    def decide(requests: Sequence[Request]) -> list[Decision]:
        nonlocal number
        (_,) = requests
        chunk = 0.1 * number + 0.01 * np.arange(declaration.chunk)
        number += 1
        actions = np.repeat(chunk[:, None], declaration.action_dim, 1).astype(np.float32)
        return [Decision(action_KA=actions, logprob_KA=np.zeros_like(actions), value=0.0)]

    return decide


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, declaration: Declaration) -> dict[str, Any]:
    """`robot` and `openpi_client`, of this file."""
    clients: list[Client] = []
    port: dict[str, Any] = {"clients": clients}

    def client(host: str, _: int) -> Client:
        clients.append(Client(host, port["port"]))
        return clients[-1]

    robot, package, module = ModuleType("robot"), ModuleType("openpi_client"), ModuleType("websocket_client_policy")
    robot.Robot, module.WebsocketClientPolicy = Robot, client  # type: ignore[attr-defined]
    assert declaration.action_spec is not None
    monkeypatch.setattr(Robot, "ACTIONS", asdict(declaration.action_spec))
    monkeypatch.setattr(Robot, "made", [])
    monkeypatch.setitem(sys.modules, "robot", robot)
    monkeypatch.setitem(sys.modules, "openpi_client", package)
    monkeypatch.setitem(sys.modules, "openpi_client.websocket_client_policy", module)
    return port


def test_the_robot_loop_has_30_lines_and_plays_chunk_after_chunk(
    serving: Serving, declaration: Declaration, modules: dict[str, Any]
) -> None:
    assert len(ROBOT_LOOP.splitlines()) <= 30
    told = replace(declaration, state=Robot.STATE, control_hz=100.0)
    with serving(counted(told), told) as server:
        modules["port"] = server.port
        started = time.monotonic()
        exec(compile(ROBOT_LOOP, "serving.md", "exec"), {})  # noqa: S102  the page's own code
        assert time.monotonic() - started >= 8 / 100.0
        modules["clients"][0].close()
    assert Robot.made[0].actions == [0.0, 0.01, 0.02, 0.1, 0.11, 0.12, 0.2, 0.21, 0.22]


def test_a_robot_of_other_conventions_does_not_move(
    serving: Serving, declaration: Declaration, modules: dict[str, Any]
) -> None:
    told = replace(declaration, state="joints 2", control_hz=100.0)
    with serving(counted(told), told) as server:
        modules["port"] = server.port
        with pytest.raises(SystemExit, match=r"the policy wants .* and 'joints 2'"):
            exec(compile(ROBOT_LOOP, "serving.md", "exec"), {})  # noqa: S102
        modules["clients"][0].close()
    assert Robot.made[0].actions == []


def test_chunks_follow_each_other_without_their_first_actions(serving: Serving, declaration: Declaration) -> None:
    names: dict[str, Any] = {}
    exec(compile(PLAY, "serving.md", "exec"), names)  # noqa: S102
    told = replace(declaration, chunk=5)
    robot = Robot()

    def look() -> dict[str, Any]:
        return {"observation/image": robot.camera(8), "observation/state": robot.state(), "prompt": "reach red"}

    with serving(counted(told), told) as server:
        client = Client("127.0.0.1", server.port)
        names["play"](client, robot, look, steps=11, ahead=2)
        client.close()
    # 5 actions of the first chunk, then those from the third on of each later one
    assert robot.actions == [0.0, 0.01, 0.02, 0.03, 0.04, 0.12, 0.13, 0.14, 0.22, 0.23, 0.24]


def test_the_file_about_a_foreign_server_is_read() -> None:
    (text,) = re.findall(r"^   ```yaml\n(.*?)^   ```$", PAGE, flags=re.M | re.S)
    from vla_policies.checkpoint_io.json_records import from_json

    conf = from_json(ServerConf, parse_yaml(text, "serving.md"), "serving.md")
    assert conf.policy is not None
    stated = Declaration.from_json({"policy": "pi05", **conf.policy}, "serving.md")
    assert (stated.chunk, stated.answer_length, stated.deterministic) == (5, 10, False)
