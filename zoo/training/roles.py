"""A training run whose ranks have different roles: simulators served to ranks that decide, which send rollouts to
ranks that learn."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import torch

from vla_gym import VLAVectorEnv, make_vec
from vla_gym.make import sub_env_setup
from vla_gym.specs import Benchmark
from vla_gym.vector.protocol import EnvConfig
from vla_gym.workers.pool import AbsentPool, Pool
from vla_gym.workers.remote_pool import RemotePool, serve
from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.distributed.placement import Placement
from zoo.distributed.process_group import ProcessGroup, check_same_weights
from zoo.distributed.weight_sync import Channel, WeightSync
from zoo.training.callbacks import StopSignals
from zoo.training.remote_rollouts import Exchange, RemoteRollouts, RolloutWorker
from zoo.training.run_plan import RunPlan, TrainJob
from zoo.training.setup import ENV_DEFAULTS, keep_stages_that_pay, make_envs, make_model, training_share

_OUTSIDE = "192.0.2.1"
"""An address that no machine has (TEST-NET-1, RFC 5737): the way there is the default route."""


def set_up_roles(
    job: TrainJob, plan: RunPlan, process_group: ProcessGroup, device: torch.device, cleanup: ExitStack
) -> VLAOnPolicyAlgorithm | CollectingRank:
    """Build this rank's part of the run: its learner, or what it does for those of other ranks.

    Every rank of the run must call it.
    """
    config, placement, number = plan.config, plan.placement, process_group.rank
    channel = Channel(process_group.host_group)
    # All ranks make both groups, members or not.
    rollouts, actors = (process_group.subgroup(ranks) for ranks in (placement.rollout, placement.actor))
    sync = _weights_group(plan, process_group, device)
    servers = EnvServers(placement, process_group)
    # After this rank's own environments are closed, and not where an error ends it.
    cleanup.push(lambda kind, *_: servers.join() if kind is None else None)
    servers.start(lambda: _served_envs(plan))

    def model_of(group: ProcessGroup, **options: Any) -> VLAOnPolicyAlgorithm:
        envs = make_envs(config, cleanup, **training_share(config, group), **options)
        return make_model(job, envs, device, group)

    def remote_pool(benchmark: Benchmark, env_config: EnvConfig) -> Pool:
        memory = sub_env_setup(benchmark, env_config).memory
        return RemotePool(memory, servers.connect(number), num_stages=env_config.pipeline_stages)

    learner = model = None
    if actors is not None:
        learner = model_of(actors, pool=lambda *asked: AbsentPool(sub_env_setup(*asked).memory))
    if rollouts is not None:
        pool = {"pool": remote_pool} if placement.remote_envs else {}
        model = model_of(rollouts, pipeline_stages=plan.batch.num_stages, **pool)
        if config.pipeline_stages == "auto":
            keep_stages_that_pay(model)
    holder = learner or model
    policy = None if holder is None else holder.policy
    check_same_weights(policy, process_group)
    weights = None if policy is None or sync is None else WeightSync(policy, placement.actor[0], *sync)
    exchange = Exchange(placement=placement, rank=number, num_envs=config.num_envs, channel=channel, weights=weights)
    worker = None if model is None or policy is None else RolloutWorker(model.make_collector(policy), exchange)
    if learner is None:
        return CollectingRank(worker, cleanup)
    source = RemoteRollouts(learner, exchange, own=worker, max_staleness=config.max_staleness)
    learner.rollout_source = source
    cleanup.push(lambda kind, *_: source.close() if kind in (None, KeyboardInterrupt) else None)
    return learner


class CollectingRank:
    """A rank that decides or simulates and does not learn."""

    def __init__(self, worker: RolloutWorker | None, cleanup: ExitStack) -> None:
        self._worker = worker
        self._cleanup = cleanup

    def train(self) -> None:
        """Collect, or serve simulators, until the ranks that learn have ended."""
        # SIGTERM reaches the actor ranks too: they save, and then stop this one.
        with StopSignals(lambda: None):
            if self._worker is not None:
                self._worker.serve()
            self._cleanup.close()  # waits for the clients of this rank's servers


def _served_envs(plan: RunPlan) -> VLAVectorEnv:
    """Return the simulators behind one server; the client chooses their start states."""
    placement, stages = plan.placement, plan.batch.num_stages
    num_envs = plan.config.num_envs // max(len(placement.env), len(placement.rollout))
    stages = stages if num_envs % stages == 0 else 1
    options = {**ENV_DEFAULTS, **plan.config.env_options}
    options |= {"num_envs": num_envs, "group_size": 1, "pipeline_stages": stages}
    return make_vec(plan.config.env, seed=plan.config.seed, **options)


def _weights_group(plan: RunPlan, process_group: ProcessGroup, device: torch.device) -> tuple[Any, torch.device] | None:
    """Return group, and device of the buffers, in which weights travel; None off the way. Every rank must call it.

    Over NCCL where sender and receivers have GPUs. A rank that collects ahead comes late for the weights, which then
    wait for it in main memory: a waiting NCCL kernel would hold a GPU.
    """
    sender, receivers = plan.placement.actor[0], plan.placement.weights_to
    devices = process_group.all_gather_object(device.type)
    members = process_group.subgroup(sorted((sender, *receivers))) if receivers else None
    if members is None or process_group.rank not in (sender, *receivers):
        return None
    on_device = all(devices[rank] != "cpu" for rank in (sender, *receivers)) and not plan.config.max_staleness
    return (members.gradient_group, device) if on_device else (members.host_group, torch.device("cpu"))


# Simulators served to rollout ranks -----------------------------------------------------------------


class EnvServers:
    """The servers of this rank, none where it has no simulators to serve, and the addresses of all."""

    def __init__(self, placement: Placement, process_group: ProcessGroup) -> None:
        """Open this rank's servers and exchange all addresses. Every rank of the run must call it."""
        self._placement = placement
        self._key = str(process_group.broadcast_object(secrets.token_hex(32))).encode()
        self._listeners: list[Listener] = []
        if placement.remote_envs and process_group.rank in placement.env:
            host = local_address()
            self._listeners = [Listener((host, 0), authkey=self._key) for _ in range(placement.clients)]
        self._addresses = process_group.all_gather_object([list(listener.address) for listener in self._listeners])
        self._threads: list[threading.Thread] = []
        self._failures: list[Exception] = []

    def start(self, make: Callable[[], VLAVectorEnv]) -> None:
        """Start a server, with simulators of its own, behind each listener."""
        for listener in self._listeners:
            thread = threading.Thread(target=self._run, args=(listener, make()), daemon=True)
            thread.start()
            self._threads.append(thread)

    def connect(self, rank: int) -> list[Connection]:
        """Return the connections of a rollout rank to its servers."""
        addresses = (self._addresses[server][number] for server, number in self._placement.servers_of(rank))
        return [Client((str(host), int(port)), authkey=self._key) for host, port in addresses]

    def join(self) -> None:
        """Wait until every client has closed its connection; raises the error that ended a server."""
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _run(self, listener: Listener, envs: VLAVectorEnv) -> None:
        try:
            with listener:
                connection = listener.accept()
            serve(connection, envs.pool)
        except Exception as error:  # noqa: BLE001  raised by `join`
            self._failures.append(error)


def local_address() -> str:
    """Return this machine's address for the run's other machines: the one it reaches `MASTER_ADDR` from.

    A machine's own name may stand for a loopback address there (127.0.1.1 on Debian), which no other machine reaches:
    then it is the one of the route to the outside, where there is one. A `MASTER_ADDR` that says loopback means it.
    """
    meeting = os.environ.get("MASTER_ADDR", "127.0.0.1")
    hosts = [meeting] if meeting == "localhost" or meeting.startswith("127.") else [meeting, _OUTSIDE]
    own = ""
    for host in hosts:
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 1))  # of UDP: nothing is sent
            own = own if own and not own.startswith("127.") else str(probe.getsockname()[0])
    return own
