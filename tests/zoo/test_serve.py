"""zoo.serve as a command: its flags, its one line, and the end by a signal."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from websockets.sync.client import connect

from vla_gym.errors import VLAZooError
from zoo import serve
from zoo.serving.declaration import ServerSettings
from zoo.serving.openpi import OpenpiServerSession
from zoo.serving.wire import pack_openpi, unpack

AGENT = "agents/ppo/MetaWorld-window-close"


def settings(*argv: str) -> tuple[ServerSettings, dict[str, str]]:
    args = serve.parser().parse(["-i", AGENT, "--port", "0", *argv])
    return serve.server_settings(args), serve.wire_names(args.names, OpenpiServerSession.NAMES)


def test_it_listens_on_this_machine_alone_unless_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    own, names = settings()
    assert own.token is None
    assert (serve.parser().parse([]).host, serve.parser().parse([]).port) == ("127.0.0.1", 8000)
    assert names == OpenpiServerSession.NAMES
    assert capsys.readouterr().out == ""
    settings("--host", "0.0.0.0")  # noqa: S104
    assert "--token-file" in capsys.readouterr().out
    (tmp_path / "token").write_text("0123456789abcdef")
    settings("--host", "0.0.0.0", "--token-file", str(tmp_path / "token"))  # noqa: S104
    assert "unencrypted" in capsys.readouterr().out
    _, names = settings("--names", "image=base_camera")
    assert names["image"] == "base_camera"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--port", "70000"], "65535"),
        (["--protocol", "grpc"], "grpc"),
        (["--names", "image"], "KEY=NAME"),
        (["--names", "camera=x"], "camera"),
        (["--names", "image=prompt"], "prompt"),
        (["--window", "-1"], "--window"),
        (["--token-file", "nowhere"], "nowhere"),
        (["--idle-timeout", "0"], "--idle-timeout"),
        (["--host", "192.0.2.1"], r"192\.0\.2\.1"),  # an address of documentation's
    ],
)
def test_flags_that_cannot_be(argv: list[str], said: str) -> None:
    with pytest.raises(VLAZooError, match=said):
        serve.run(["-i", AGENT, *argv])


def test_a_port_that_is_taken_is_said_before_the_policy_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(VLAZooError, match=f"127.0.0.1:{port}.*--port"):
            serve.run(["-i", AGENT, "--port", str(port)])


@pytest.mark.processes
def test_it_serves_until_it_is_asked_to_end() -> None:
    command = [sys.executable, "-m", "zoo.serve", "-i", AGENT, "--port", "0", "--device", "cpu", "--num-threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith(f"serving {AGENT} (deterministic actions (nearest the mean)) to openpi clients on ws://")
        assert "'observation/image': uint8 [64, 64, 3]" in line
        assert "rotation none; gripper plus_one_closes" in line
        port = line.split("ws://127.0.0.1:")[1].split(",")[0]
        with connect(f"ws://127.0.0.1:{port}", compression=None) as ws:
            declared = unpack(ws.recv())["vla_zoo"]
            image = np.zeros((declared["image_size"], declared["image_size"], 3), np.uint8)
            obs = {"observation/image": image, "observation/state": np.zeros(declared["state_dim"], np.float32)}
            ws.send(pack_openpi({**obs, "prompt": "close the window"}))
            assert unpack(ws.recv())["actions"].shape == (8, 4)
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "stopped: 1 connections, 1 decisions in 1 batches" in rest
