"""A training run whose ranks have different roles; `zoo.training.train.train` calls it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch

from vla_gym import VLAVectorEnv, make_vec
from vla_gym.make import sub_env_setup
from vla_gym.specs import Benchmark
from vla_gym.vector.protocol import EnvConfig
from vla_gym.workers.pool import AbsentPool, Pool
from vla_gym.workers.remote_pool import RemotePool
from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.config.run_config import RunConfig
from zoo.distributed.agreement import check_same_weights
from zoo.distributed.channel import Channel
from zoo.distributed.env_server import EnvServers, open_env_servers
from zoo.distributed.process_group import ProcessGroup, training_share
from zoo.distributed.weight_sync import WeightSync
from zoo.runs.folder import RunFolder
from zoo.training.callbacks import StopSignals
from zoo.training.checkpoint import load_checkpoint
from zoo.training.remote_rollouts import RemoteRollouts
from zoo.training.rl_trainer import RLTrainer
from zoo.training.rollout_worker import RolloutWorker
from zoo.training.run_plan import RunPlan
from zoo.training.setup import ENV_DEFAULTS, make_model, open_run_folder, run_log
from zoo.training.start_warnings import log_plan
from zoo.training.trainer import TrainJob


def train_placed(job: TrainJob, plan: RunPlan, process_group: ProcessGroup, device: torch.device) -> RunFolder | None:
    """As `zoo.training.train.train`; the first actor rank writes. Every rank of the run must call it."""
    with ExitStack() as cleanup:
        cleanup.enter_context(run_log(writes=process_group.rank == plan.placement.actor[0]))
        log_plan(plan, job.resume)
        rank = _PlacedRank(job, plan, process_group, device, cleanup)
        rank.build()
        run = None
        if rank.learner is not None:
            run = rank.learn()
        else:
            rank.collect()
    rank.servers.join()
    return run


class _PlacedRank:
    """This process with its roles."""

    def __init__(
        self,
        job: TrainJob,
        plan: RunPlan,
        process_group: ProcessGroup,
        device: torch.device,
        cleanup: ExitStack,
    ) -> None:
        self._job = job
        self._config: RunConfig = job.config
        self._placement = placement = plan.placement
        self._num_stages = plan.batch.num_stages
        self._number = process_group.rank
        self._device = device
        self._cleanup = cleanup
        self._process_group = process_group
        self._channel = Channel(process_group.host_group)
        # All ranks make both groups, members or not.
        self._rollouts = process_group.subgroup(placement.rollout)
        self._actors = process_group.subgroup(placement.actor)
        self._sync = _weights_group(plan, process_group, device)
        self.servers: EnvServers = open_env_servers(placement, process_group)
        self.learner: VLAOnPolicyAlgorithm | None = None
        self._worker: RolloutWorker | None = None

    def build(self) -> None:
        """Start simulators, and build learner and worker by this rank's roles."""
        config, placement = self._config, self._placement
        self.servers.start(self._served_envs)
        if self._actors is not None:
            envs = self._envs(pool=_absent_pool, **training_share(config, self._actors))
            self.learner = self._model(envs, self._actors)
        if self._rollouts is not None:
            share: dict[str, Any] = training_share(config, self._rollouts)
            if placement.remote_envs:
                share["pool"] = self._remote_pool
            envs = self._envs(pipeline_stages=self._num_stages, **share)
            model = self._model(envs, self._rollouts)
            if self.learner is not None:
                model.policy = self.learner.policy
            self._worker = RolloutWorker(
                model, placement, self._number, self._channel, config.num_envs, weights=self._weights(model)
            )
        holder = self.learner or self._worker
        check_same_weights(None if holder is None else holder.policy, self._process_group)

    def learn(self) -> RunFolder | None:
        """Train, as an actor rank."""
        job, learner = self._job, self.learner
        assert learner is not None
        assert self._actors is not None
        if job.checkpoint is not None:
            load_checkpoint(learner, job.checkpoint)
        source = RemoteRollouts(
            learner,
            self._placement,
            self._number,
            self._channel,
            self._config.num_envs,
            weights=self._weights(learner),
            own=self._worker,
            max_staleness=self._config.max_staleness,
        )
        learner.set_rollout_source(source)
        envs: Any = learner.env
        run = open_run_folder(job, envs.unwrapped.envs, self._actors, self._cleanup)
        try:
            RLTrainer(job, learner, envs.unwrapped.envs, run).learn()
        except KeyboardInterrupt:
            source.close()
            raise
        source.close()
        return run if self._actors.is_first else None

    def collect(self) -> None:
        """Collect, or serve simulators, until an actor rank stops it, as a rank that does not learn."""
        # SIGTERM reaches the actor ranks too: they save, and then stop this one.
        with StopSignals(lambda: None):
            if self._worker is not None:
                self._worker.serve()
                self._cleanup.close()
            self.servers.join()

    def _envs(self, **options: Any) -> VLAVectorEnv:
        config = self._config
        envs = make_vec(config.env, seed=config.seed, **{**ENV_DEFAULTS, **config.env_options, **options})
        self._cleanup.callback(envs.close)
        return envs

    def _served_envs(self) -> VLAVectorEnv:
        """The simulators behind one server; the client chooses their start states."""
        placement = self._placement
        num_envs = self._config.num_envs // max(len(placement.env), len(placement.rollout))
        stages = self._num_stages if num_envs % self._num_stages == 0 else 1
        options = {**ENV_DEFAULTS, **self._config.env_options}
        options |= {"num_envs": num_envs, "group_size": 1, "pipeline_stages": stages}
        return make_vec(self._config.env, seed=self._config.seed, **options)

    def _remote_pool(self, benchmark: Benchmark, config: EnvConfig) -> Pool:
        connections = self.servers.connect(self._placement, self._number)
        return RemotePool(sub_env_setup(benchmark, config).memory, connections, num_stages=config.pipeline_stages)

    def _weights(self, model: VLAOnPolicyAlgorithm) -> WeightSync | None:
        """How the model's weights travel; None on ranks that neither send nor receive them."""
        return None if self._sync is None else WeightSync(model.policy, self._placement.actor[0], *self._sync)

    def _model(self, envs: VLAVectorEnv, process_group: ProcessGroup) -> VLAOnPolicyAlgorithm:
        return make_model(self._config, envs, self._device, process_group, weights=self._job.checkpoint)


def _weights_group(plan: RunPlan, process_group: ProcessGroup, device: torch.device) -> tuple[Any, torch.device] | None:
    """Group, and device of the buffers, in which weights travel; None off the way. Every rank must call it.

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


def _absent_pool(benchmark: Benchmark, config: EnvConfig) -> Pool:
    return AbsentPool(sub_env_setup(benchmark, config).memory)
