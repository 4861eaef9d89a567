"""The optimiser step: scoring a minibatch up to the loss, backward, clip, step; alone knows Accelerate's wrappers.

With several processes `accelerator.prepare` wraps the scoring module, so the backward pass leaves the mean of the
ranks' gradients; callers do not change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import patch_environment
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from zoo.distributed.fsdp import (
    fits_whole,
    fsdp_requested,
    learning_copy,
    num_replicas,
    shard,
    sharding_settings,
    sync_weights,
    whole,
)
from zoo.distributed.process_group import lost_ranks


class Scorer(nn.Module):
    """Computes a loss with the present weights; `forward` is what data parallelism hooks into."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy: Any = policy

    def forward(self, *inputs: Any) -> Any:
        """Return the loss, or a tuple that begins with it; nothing else in it has a gradient."""
        raise NotImplementedError


class Learner:
    """One scoring module, one optimiser, one gradient step at a time."""

    def __init__(
        self,
        scorer: Scorer,
        optimizer: torch.optim.Optimizer,
        max_grad_norm: float,
        *,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """`group`: average gradients among these processes of the run; None = among all."""
        self.acting: nn.Module = scorer.policy
        """The policy that acts; it learns too, unless it is sharded."""
        self.max_grad_norm = max_grad_norm
        # Which parameters a loss depends on changes from update to update (critic warm-up, no critic at all).
        ddp = DistributedDataParallelKwargs(find_unused_parameters=True)
        # The algorithm has placed the policy on its device already.
        # Replicas of shards are `_mesh`'s; Accelerate would refuse them on CPUs.
        with patch_environment(ACCELERATE_USE_PARALLELISM_CONFIG="false"):
            self.accelerator = Accelerator(device_placement=False, gradient_accumulation_steps=1, kwargs_handlers=[ddp])
        self.own_precision = self.accelerator.mixed_precision != "no"
        """Whether scoring has another precision than acting, so that a rollout must be scored again first."""
        self.sharded = fsdp_requested() and self.accelerator.num_processes > 1 and (group is None or group.size() > 1)
        """Whether the policy that learns is a second one, sharded over the ranks."""
        self._gathers_once = False
        self._scorer: Any = scorer
        if self.sharded:
            self._shard(scorer, group)
            optimizer = scorer.policy.optimizer
        else:
            self._scorer = self._replicated(scorer, group)
        self.policy: nn.Module = scorer.policy
        """The policy that learns."""
        self.raw_optimizer = optimizer
        self._optimizer = optimizer
        # Accelerate's optimiser looks for an optional package at every step, a tenth of a small update's
        # time; alone and in full precision it would only pass calls on.
        if self.accelerator.num_processes > 1 or self.own_precision:
            self._optimizer = self.accelerator.prepare_optimizer(optimizer, device_placement=False)
        # Accelerate's own clipping is for scaled gradients; it takes as long as the norm of a small network.
        scaled = self.accelerator.scaler is not None
        self._clip = self.accelerator.clip_grad_norm_ if scaled else nn.utils.clip_grad_norm_
        self._parameters = list(self.policy.parameters())
        self._frozen: list[nn.Parameter] = []

    def _replicated(self, scorer: Scorer, group: dist.ProcessGroup | None) -> nn.Module:
        ignore_frozen_parameters(scorer)
        # Accelerate knows groups of all processes only; among some it prepares everything but the averaging.
        prepared: nn.Module = self.accelerator.prepare_model(
            scorer, device_placement=False, evaluation_mode=group is not None
        )
        if group is not None and dist.get_world_size(group) > 1:
            return DistributedDataParallel(prepared, process_group=group, find_unused_parameters=True)
        return prepared

    def _shard(self, scorer: Scorer, group: dist.ProcessGroup | None) -> None:
        scorer.policy = learning_copy(scorer.policy)
        settings = sharding_settings(self.accelerator.mixed_precision)
        shard(scorer, scorer.policy.optimizer, self._mesh(group), **settings)
        if fits_whole(scorer, settings["mp_policy"].param_dtype):
            self.gather_once()

    def gather_once(self) -> None:
        """Leave sharded weights and their gradients whole from the first micro-batch of a minibatch to the last."""
        self._gathers_once = True
        self._scorer.set_reshard_after_forward(reshard_after_forward=False)

    def _mesh(self, group: dist.ProcessGroup | None) -> DeviceMesh:
        """Return the ranks that share the weights: `[shards]`, or `[replicas, shards]`."""
        kind = self.accelerator.device.type
        if group is not None:
            return DeviceMesh.from_group(group, kind)
        replicas, size = num_replicas(), self.accelerator.num_processes
        if replicas == 1:
            return init_device_mesh(kind, (size,))
        return init_device_mesh(kind, (replicas, size // replicas), mesh_dim_names=("dp_replicate", "dp_shard"))

    def serves(self, policy: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
        """Whether this is the learner of `policy` and `optimizer`."""
        return self.acting is policy and self.raw_optimizer is optimizer

    def score(self, *inputs: Any) -> Any:
        """Return the scorer's result for a micro-batch."""
        # A prepared module sets its precision itself.
        with self.accelerator.autocast() if self.sharded else nullcontext():
            return self._scorer(*inputs)

    @contextmanager
    def accumulate(self, *, last: bool) -> Iterator[None]:
        """Context manager for scoring and going backward; ranks exchange gradients with the `last` micro-batch only.

        Sharded weights are gathered once, too, and dropped with the last; with each micro-batch where memory is short.
        """
        if self._gathers_once:
            self._scorer.set_requires_gradient_sync(last)
            self._scorer.set_reshard_after_backward(last)
        whole_gradient = nullcontext() if last or self.sharded else self.accelerator.no_sync(self._scorer)
        with lost_ranks(), whole_gradient:
            yield

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self._optimizer.zero_grad()

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a micro-batch's loss."""
        self.accelerator.backward(loss)

    def apply(self) -> tuple[Tensor, bool]:
        """Clip and step with the gradients accumulated; return their global norm before, and whether it stepped.

        A gradient that is not finite changes neither weights nor optimiser state.
        """
        for parameter in self._frozen:
            # Without a gradient an optimiser leaves a parameter and its state alone: no momentum, no decay.
            parameter.grad = None
        with lost_ranks():
            norm = self._clip(self._parameters, self.max_grad_norm)
            norm = whole(norm) if self.sharded else norm
        finite = math.isfinite(norm)
        if finite or self.accelerator.scaler is not None:
            # A loss scaler itself skips a step that is not finite, and lowers its scale.
            self._optimizer.step()
        else:
            self._optimizer.zero_grad()
        return norm, finite

    def sync_weights(self) -> None:
        """Copy the weights into the acting policy after an update. Every rank must call it."""
        if self.sharded:
            sync_weights(self.policy, self.acting)

    @contextmanager
    def train_critic(self) -> Iterator[None]:
        """Context manager in which steps change the critic alone; the others keep their optimiser state too."""
        backbone: Any = self.policy.backbone
        trained = {id(parameter) for parameter in backbone.critic_parameters()}
        self._frozen = [
            parameter for parameter in self._parameters if parameter.requires_grad and id(parameter) not in trained
        ]
        # Data parallelism waits for every gradient it has registered; alone, the backward pass can stop early.
        alone = self.accelerator.num_processes == 1
        try:
            for parameter in self._frozen if alone else ():
                parameter.requires_grad_(False)
            # Ranks that share a sharded policy encode together, and one may have kept what another has not.
            with nullcontext() if self.sharded else backbone.critic_trained_alone():
                yield
        finally:
            for parameter in self._frozen:
                parameter.requires_grad_(True)
            self._frozen = []


def ignore_frozen_parameters(module: nn.Module) -> None:
    """Exclude frozen parameters, which every rank has read, and buffers from data parallelism."""
    ignored = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
    ignored += [name for name, _ in module.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ignored)
