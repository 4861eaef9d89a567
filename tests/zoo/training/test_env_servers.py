"""Env ranks serve simulators to rollout ranks, here from a thread of this process."""

from __future__ import annotations

import numpy as np
import pytest

from vla_gym import VLAVectorEnv, WorkerFailed, make_vec
from vla_gym.make import sub_env_setup
from vla_gym.specs import Benchmark
from vla_gym.vector.protocol import EnvConfig
from vla_gym.workers.pool import Pool
from vla_gym.workers.remote_pool import RemotePool
from zoo.distributed.placement import parse_placement
from zoo.distributed.process_group import ProcessGroup
from zoo.training import roles
from zoo.training.roles import EnvServers

ROUTES = {"node-0": "127.0.0.1", "10.0.0.2": "10.0.0.1", "localhost": "127.0.0.1", "127.0.1.1": "127.0.0.1"}
"""Host -> this machine's address on the way there; its own name is node-0, 127.0.1.1 in its /etc/hosts."""
PLACEMENT = parse_placement("env=0,rollout=1,actor=2", 3)


def served() -> VLAVectorEnv:
    return make_vec("Toy-Reach", 4, chunk=2)


@pytest.fixture
def servers() -> EnvServers:
    return EnvServers(PLACEMENT, ProcessGroup())


def remote(servers: EnvServers) -> VLAVectorEnv:
    def pool(benchmark: Benchmark, config: EnvConfig) -> Pool:
        return RemotePool(sub_env_setup(benchmark, config).memory, servers.connect(1))

    return make_vec("Toy-Reach", 4, chunk=2, seed=3, pool=pool)


def test_a_rollout_rank_steps_the_simulators_of_an_env_rank(servers: EnvServers):
    servers.start(served)
    here, there = make_vec("Toy-Reach", 4, chunk=2, seed=3), remote(servers)
    assert np.array_equal(here.reset()[0]["image"], there.reset()[0]["image"])
    actions = np.full((4, 2, 2), 0.5)
    stepped, served_step = here.step(actions), there.step(actions)
    assert np.array_equal(stepped[0]["image"], served_step[0]["image"])
    assert stepped[4]["start_state"].tolist() == served_step[4]["start_state"].tolist()
    there.close()
    servers.join()


def test_what_ends_a_server_is_raised_by_its_rank(servers: EnvServers):
    made = served()
    servers.start(lambda: made)
    envs = remote(servers)
    envs.reset()
    made.close()  # its sub-environments are gone
    with pytest.raises(WorkerFailed):
        envs.step(np.zeros((4, 2, 2)))
    with pytest.raises(WorkerFailed):
        servers.join()


@pytest.mark.parametrize(
    ("meeting", "outside", "own"),
    [
        ("10.0.0.2", "10.0.0.1", "10.0.0.1"),
        ("node-0", "10.0.0.1", "10.0.0.1"),
        ("node-0", None, "127.0.0.1"),
        ("localhost", "10.0.0.1", "127.0.0.1"),
        ("127.0.1.1", "10.0.0.1", "127.0.0.1"),
        (None, "10.0.0.1", "127.0.0.1"),
    ],
)
def test_a_machine_s_own_name_is_not_announced_as_loopback(
    meeting: str | None, outside: str | None, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Probe:
        """A UDP socket on that machine."""

        def __init__(self, *kind: int) -> None:
            self.host = ""

        def __enter__(self) -> Probe:
            return self

        def __exit__(self, *error: object) -> None: ...

        def connect(self, address: tuple[str, int]) -> None:
            self.host = address[0]
            if self.host not in ROUTES and outside is None:
                raise OSError("Network is unreachable")

        def getsockname(self) -> tuple[str, int]:
            return ROUTES.get(self.host, outside or ""), 1

    monkeypatch.setattr(roles.socket, "socket", Probe)
    monkeypatch.setitem(ROUTES, "127.0.0.1", "127.0.0.1")
    if meeting is None:
        monkeypatch.delenv("MASTER_ADDR", raising=False)
    else:
        monkeypatch.setenv("MASTER_ADDR", meeting)
    assert roles.local_address() == own
