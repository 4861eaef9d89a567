"""The optimiser step and whatever crosses ranks: the only place that knows Accelerate.

With one process every sum is a local sum. With several, `accelerator.prepare` wraps the scoring module, so
gradients are averaged by the backward pass, and statistics go through `total`; callers do not change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from vla_gym.errors import BadValue
from zoo.records import Minibatch, Scored


class Scorer(nn.Module):
    """Scores minibatches with the present weights; `forward` is what data parallelism hooks into."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy: Any = policy

    def forward(self, batch: Minibatch) -> Scored:
        """Log-probabilities, entropies and values, with gradients."""
        raise NotImplementedError


class Learner:
    """One scoring module, one optimiser, one gradient step at a time."""

    def __init__(self, scorer: Scorer, optimizer: torch.optim.Optimizer, max_grad_norm: float) -> None:
        self.policy: nn.Module = scorer.policy
        self.raw_optimizer = optimizer
        self.max_grad_norm = max_grad_norm
        # The algorithm has placed the policy on its device already.
        self.accelerator = Accelerator(device_placement=False)
        self._scorer: nn.Module = self.accelerator.prepare_model(scorer, device_placement=False)
        self._optimizer = optimizer
        # Accelerate's optimiser looks for an optional package at every step, a tenth of a small update's
        # time; alone and in full precision it would only pass calls on.
        if self.accelerator.num_processes > 1 or self.accelerator.mixed_precision != "no":
            self._optimizer = self.accelerator.prepare_optimizer(optimizer, device_placement=False)
        self._parameters = list(self.policy.parameters())
        self._resting: list[nn.Parameter] = []

    def serves(self, policy: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
        """Is this the learner of that policy and optimiser?"""
        return self.policy is policy and self.raw_optimizer is optimizer

    def score(self, batch: Minibatch) -> Scored:
        """Score a minibatch."""
        scored: Scored = self._scorer(batch)
        return scored

    def step(self, loss: Tensor) -> tuple[Tensor, bool]:
        """Backward, clip, step. Returns the global gradient norm before clipping, and whether it stepped.

        A gradient that is not finite changes nothing: neither weights nor optimiser state.
        """
        self.begin()
        self.backward(loss)
        return self.apply()

    def begin(self) -> None:
        """Forget gradients."""
        self._optimizer.zero_grad()

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a part of the loss."""
        self.accelerator.backward(loss)

    def apply(self) -> tuple[Tensor, bool]:
        """Clip and step with the gradients gathered; as `step`."""
        for parameter in self._resting:
            # Without a gradient an optimiser leaves a parameter and its state alone: no momentum, no decay.
            parameter.grad = None
        norm: Tensor = self.accelerator.clip_grad_norm_(self._parameters, self.max_grad_norm)
        finite = math.isfinite(norm)
        if finite:
            self._optimizer.step()
        else:
            self._optimizer.zero_grad()
        return norm, finite

    @contextmanager
    def only(self, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
        """Inside, steps move these parameters alone; the others, and what the optimiser knows of them, rest."""
        moving = {id(one) for one in parameters}
        self._resting = [one for one in self._parameters if one.requires_grad and id(one) not in moving]
        # Data parallelism waits for every gradient it was told of; alone, the backward pass can stop early.
        alone = self.accelerator.num_processes == 1
        try:
            for one in self._resting if alone else ():
                one.requires_grad_(False)
            yield
        finally:
            for one in self._resting:
                one.requires_grad_(True)
            self._resting = []

    def total(self, values: Tensor) -> Tensor:
        """Sum over ranks, elementwise; every rank gets it."""
        summed: Tensor = self.accelerator.reduce(values.to(self.accelerator.device), reduction="sum")
        return summed.cpu()

    def moments(self, values: Tensor) -> tuple[float, float]:
        """Mean and unbiased standard deviation over the entries of every rank; the latter 0 below two entries."""
        wide = values.detach().double().flatten().cpu()
        count, first = self.total(torch.stack([torch.tensor(len(wide)).double(), wide.sum()]))
        if count == 0:
            return 0.0, 0.0
        mean = first / count
        squares = self.total((wide - mean).square().sum()[None])[0]
        std = math.sqrt(float(squares / (count - 1))) if count > 1 else 0.0
        return float(mean), std


def critic_parameters(policy: Any) -> list[nn.Parameter]:
    """The parameters of a policy that its values alone depend on.

    Raises `BadValue` when it has none to tell apart.
    """
    if hasattr(policy, "backbone"):
        found = policy.backbone.critic_parameters()
    elif hasattr(policy, "value_net") and hasattr(policy, "mlp_extractor"):
        found = [*policy.value_net.parameters(), *policy.mlp_extractor.value_net.parameters()]
    else:
        raise BadValue(f"{type(policy).__name__} has no value head of its own to train before the rest")
    return [one for one in found if one.requires_grad]
