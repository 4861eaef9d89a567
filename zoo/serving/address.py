"""The address of a policy that others serve, and what a user states about a server that is not ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from vla_gym.errors import BadValue
from vla_policies.checkpoint_io.json_records import from_json
from zoo.serving.access import read_token
from zoo.serving.declaration import Declaration
from zoo.serving.openpi import OpenpiClientSession, OpenpiServerSession
from zoo.serving.protocols import ClientSession, ServerSession, renamed
from zoo.serving.vla_eval import VlaEvalClientSession, VlaEvalServerSession
from zoo.yaml_text import read_yaml

PROTOCOLS: dict[str, tuple[type[ServerSession], type[ClientSession]]] = {
    "openpi": (OpenpiServerSession, OpenpiClientSession),
    "vla-eval": (VlaEvalServerSession, VlaEvalClientSession),
}
"""Protocol -> the server's and the client's side of a connection."""


@dataclass(frozen=True, kw_only=True)
class ServerConf:
    """The content of `--server-conf FILE`."""

    protocol: Literal["openpi", "vla-eval"] = "openpi"
    """What the server speaks."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Our observation keys -> the server's words, where those are not the protocol's usual ones."""
    timeout: float = 60.0
    """Longest wait for an answer, seconds."""
    attempts: int = 6
    """How often a request is sent before the command gives up; the waits between double from 0.5 s."""
    ca_file: str | None = None
    """Certificates to trust for wss://, PEM; None = the system's."""
    policy: Mapping[str, Any] | None = None
    """Declaration of the policy (fields of `Declaration`), of a server that sends none."""

    def __post_init__(self) -> None:
        if self.timeout <= 0 or self.attempts < 1:
            raise BadValue(f"timeout must be > 0 and attempts >= 1, got {self.timeout} and {self.attempts}")
        renamed(PROTOCOLS[self.protocol][0].NAMES, self.names)


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """A policy server and how to speak with it."""

    url: str
    """`ws://host:port` or `wss://host:port`."""
    conf: ServerConf = field(default_factory=ServerConf)
    """What the user states about it."""
    token: str | None = field(default=None, repr=False)
    """What it asks its clients for."""

    def session(self) -> ClientSession:
        """Return a client's side of a new connection."""
        served, client = PROTOCOLS[self.conf.protocol]
        return client(renamed(served.NAMES, self.conf.names))

    def declared(self) -> Declaration | None:
        """Return what the user states about the policy, if anything."""
        if self.conf.policy is None:
            return None
        return Declaration.from_json({"policy": self.url, **self.conf.policy}, "policy of --server-conf")


def server_address(url: str, *, conf_file: str | None = None, token_file: str | None = None) -> ServerAddress:
    """Return the address of `--policy url`; raises `BadValue` for what is none."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise BadValue(f"--policy {url}: {error}") from error
    if not host or parts.fragment or parts.query:
        raise BadValue(f"--policy {url}: the address of a policy server is ws://HOST:PORT or wss://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise BadValue("--policy: a token in the address would be printed with it; give it with --token-file FILE")
    return ServerAddress(
        url=url,
        conf=ServerConf() if conf_file is None else read_conf(Path(conf_file)),
        token=None if token_file is None else read_token(Path(token_file)),
    )


def read_conf(path: Path) -> ServerConf:
    """Read `--server-conf`; raises `BadValue` naming what does not fit."""
    values = read_yaml(path)
    return from_json(ServerConf, {} if values is None else values, f"--server-conf {path}")
