"""Connections between env ranks, which serve simulators, and rollout ranks."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener

from vla_gym import VLAVectorEnv
from vla_gym.workers.remote_pool import serve
from zoo.distributed.placement import Placement
from zoo.distributed.process_group import ProcessGroup

LOOPBACK = "127.0.0.1"
OUTSIDE = "192.0.2.1"
"""An address that no machine has (TEST-NET-1, RFC 5737): the way there is the default route."""


@dataclass
class EnvServers:
    """The servers of this rank, none where it has no simulators to serve, and the addresses of all."""

    addresses: list[list[tuple[str, int]]]
    """By rank of the run: host and port of each of its servers."""
    key: bytes
    """Secret shared by both ends of a connection."""
    listeners: list[Listener] = field(default_factory=list)
    """Of this rank."""
    failures: list[Exception] = field(default_factory=list)
    """Errors that ended servers of this rank."""
    _threads: list[threading.Thread] = field(default_factory=list)
    _envs: list[VLAVectorEnv] = field(default_factory=list)

    def start(self, make: Callable[[], VLAVectorEnv]) -> None:
        """Start a server, with simulators of its own, behind each listener."""
        for listener in self.listeners:
            self._envs.append(make())
            thread = threading.Thread(target=self._run, args=(listener, self._envs[-1]), daemon=True)
            thread.start()
            self._threads.append(thread)

    def connect(self, placement: Placement, rank: int) -> list[Connection]:
        """Connections of a rollout rank to its servers."""
        return [
            Client((str(host), int(port)), authkey=self.key)
            for host, port in (self.addresses[server][number] for server, number in placement.servers_of(rank))
        ]

    def join(self) -> None:
        """Wait until every client has closed its connection; raises the error that ended a server."""
        for thread in self._threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def _run(self, listener: Listener, envs: VLAVectorEnv) -> None:
        try:
            with listener:
                connection = listener.accept()
            serve(connection, envs.pool)
        except Exception as error:  # noqa: BLE001  raised by `join`
            self.failures.append(error)


def open_env_servers(placement: Placement, process_group: ProcessGroup) -> EnvServers:
    """Open this rank's servers and exchange all addresses. Every rank of the run must call it."""
    key = str(process_group.broadcast_object(secrets.token_hex(32))).encode()
    listeners = []
    if placement.remote_envs and process_group.rank in placement.env:
        host = local_address()
        listeners = [Listener((host, 0), authkey=key) for _ in range(placement.clients)]
    addresses = process_group.all_gather_object([list(listener.address) for listener in listeners])
    return EnvServers(addresses=addresses, key=key, listeners=listeners)


def local_address() -> str:
    """Address of this machine for the run's other machines: the one it reaches `MASTER_ADDR` from.

    A machine's own name may stand for a loopback address there (127.0.1.1 on Debian), which no other machine reaches:
    then it is the one of the route to the outside, where there is one. A `MASTER_ADDR` that says loopback means it.
    """
    meeting = os.environ.get("MASTER_ADDR", LOOPBACK)
    own = _address_towards(meeting)
    if _is_loopback(own) and meeting != "localhost" and not _is_loopback(meeting):
        with suppress(OSError):  # no such route: the run is on one machine
            return _address_towards(OUTSIDE)
    return own


def _address_towards(host: str) -> str:
    """This machine's address on the route to `host`; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 1))
        address: str = probe.getsockname()[0]
        return address


def _is_loopback(host: str) -> bool:
    return host.startswith("127.")
