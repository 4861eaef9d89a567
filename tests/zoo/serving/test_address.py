"""The address of a policy server, and `--server-conf`."""

from __future__ import annotations

from pathlib import Path

import pytest

from vla_gym.errors import BadValue, UnknownName
from zoo.serving.address import ServerAddress, ServerConf, read_conf, server_address
from zoo.serving.openpi import OpenpiClientSession
from zoo.serving.vla_eval import VlaEvalClientSession

FOREIGN = """
protocol: vla-eval
names: {image: base_camera}
timeout: 5
policy:
  cameras: [image]
  image_size: 256
  state_dim: 8
  chunk: 1
  action_dim: 7
  action_spec: {rotation: axis_angle, gripper: plus_one_closes, frame: delta}
"""


def test_what_is_an_address() -> None:
    assert server_address("ws://127.0.0.1:8000") == ServerAddress(url="ws://127.0.0.1:8000")
    for url, said in (
        ("ws://", "is ws://HOST:PORT"),
        ("ws://h:port", "port"),
        ("ws://h:99999", "[Pp]ort"),
        ("ws://h:1/?seed=3", "is ws://HOST:PORT"),
        ("ws://me:secret@h:1", "--token-file"),
    ):
        with pytest.raises(BadValue, match=said) as failure:
            server_address(url)
        assert "secret" not in str(failure.value)


def test_a_token_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef")
    address = server_address("ws://h:1", token_file=str(tmp_path / "token"))
    assert address.token == "0123456789abcdef"  # noqa: S105
    assert "0123456789abcdef" not in repr(address)


def test_a_foreign_server_is_described_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "foreign.yml"
    file.write_text(FOREIGN)
    address = server_address("ws://h:1", conf_file=str(file))
    session = address.session()
    assert isinstance(session, VlaEvalClientSession)
    assert session.names["image"] == "base_camera"
    declared = address.declared()
    assert declared is not None
    assert (declared.policy, declared.image_size, declared.chunk) == ("ws://h:1", 256, 1)
    assert declared.action_spec is not None
    assert isinstance(server_address("ws://h:1").session(), OpenpiClientSession)
    assert server_address("ws://h:1").declared() is None


def test_a_file_that_does_not_fit_is_named(tmp_path: Path) -> None:
    file = tmp_path / "conf.yml"
    for text, error, said in (
        ("protocl: openpi", UnknownName, "protocol"),
        ("protocol: grpc", UnknownName, "openpi, vla-eval"),
        ("timeout: 0", BadValue, "timeout must be > 0"),
        ("names: {camera: x}", UnknownName, "observation key"),
        ("[1]", BadValue, "must be a mapping"),
        ("{", BadValue, "conf.yml"),
    ):
        file.write_text(text)
        with pytest.raises(error, match=said):
            read_conf(file)
    file.write_text("")
    assert read_conf(file) == ServerConf()
    with pytest.raises(BadValue, match="cannot read"):
        read_conf(tmp_path / "none.yml")
    file.write_text("policy: {chunk: 4}")
    with pytest.raises(BadValue, match="policy of --server-conf lacks"):
        server_address("ws://h:1", conf_file=str(file)).declared()
