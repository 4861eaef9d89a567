"""Slots behind connections give what slots in this process give, and their failures arrive with their words."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import numpy as np
import pytest
from scripted_simulator import scripted_benchmark

from tests.vla_gym.conftest import trace
from vla_gym import VLAVectorEnv, WorkerFailed, make_vec
from vla_gym.make import sub_env_setup
from vla_gym.specs import Benchmark
from vla_gym.vector.protocol import EnvConfig
from vla_gym.workers.pool import Pool
from vla_gym.workers.remote_pool import RemotePool, serve

Make = Callable[..., VLAVectorEnv]


class Servers:
    """Servers on the loopback device, each in a thread with a pool of its own."""

    def __init__(self) -> None:
        self.raised: list[Exception] = []
        self._threads: list[threading.Thread] = []
        self._made: list[VLAVectorEnv] = []

    def start(self, count: int, num_envs: int, benchmark: Benchmark, **options: Any) -> list[Connection]:
        connections = []
        for _ in range(count):
            envs = make_vec(benchmark, num_envs // count, chunk=2, **options)
            self._made.append(envs)  # or else its pool would be closed
            with Listener(("127.0.0.1", 0), authkey=b"key") as listener:
                thread = threading.Thread(target=self._serve, args=(listener, envs.pool))
                thread.start()
                self._threads.append(thread)
                connections.append(Client(listener.address, authkey=b"key"))
        return connections

    def _serve(self, listener: Listener, pool: Pool) -> None:
        try:
            serve(listener.accept(), pool)
        except Exception as error:  # noqa: BLE001  looked at by the test
            self.raised.append(error)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(timeout=20)
            assert not thread.is_alive()


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.join()


def remote(make: Make, servers: Servers, count: int, benchmark: Benchmark, **options: Any) -> VLAVectorEnv:
    connections = servers.start(count, 4, benchmark, num_workers=options.pop("num_workers", 0))

    def pool(_: Benchmark, config: EnvConfig) -> Pool:
        return RemotePool(sub_env_setup(benchmark, config).memory, connections)

    return make(benchmark, 4, chunk=2, schedule="random", seed=5, pool=pool, **options)


@pytest.mark.parametrize(("count", "num_workers"), [(1, 0), (2, 0), (2, 1)])
def test_remote_slots_do_what_local_ones_do(make: Make, servers: Servers, count: int, num_workers: int):
    benchmark = scripted_benchmark()
    local = make(benchmark, 4, chunk=2, schedule="random", seed=5)
    envs = remote(make, servers, count, benchmark, num_workers=num_workers)
    for one in (local, envs):
        one.reset(seed=5)
    assert trace(envs, 8) == trace(local, 8)
    state = envs.state_dict()
    envs.load_state_dict(state)
    envs.close()


def test_stages_reach_over_servers(make: Make, servers: Servers):
    envs = remote(make, servers, 2, scripted_benchmark((9,)), autoreset_mode="disabled", pipeline_stages=2)
    envs.reset()
    for stage in envs.stages:
        stage.send_step(np.zeros((2, 2, 2), dtype=np.float32))
    for stage in envs.stages:
        assert stage.part in (slice(0, 2), slice(2, 4))
    envs.close()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_failure_is_raised_at_both_ends(make: Make, servers: Servers, num_workers: int):
    envs = remote(make, servers, 2, scripted_benchmark((9,), failure="raise"), num_workers=num_workers)
    envs.reset()
    actions = np.zeros((4, 2, 2), dtype=np.float32)
    actions[3] = 0.95
    with pytest.raises(WorkerFailed, match="the arm fell off"):
        envs.step(actions)
    assert envs.closed
    servers.join()
    assert [type(error) for error in servers.raised] == [WorkerFailed]
