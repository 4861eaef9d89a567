"""One gradient step, worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn

from zoo.distributed.learner import Learner, Scorer, ignore_frozen_parameters


def make(max_grad_norm: float = 10.0) -> tuple[Learner, nn.Parameter]:
    policy = nn.Module()
    policy.weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1, momentum=0.9)
    return Learner(Scorer(policy), optimizer, max_grad_norm), policy.weight


def step(learner: Learner, loss: Tensor) -> tuple[Tensor, bool]:
    learner.zero_grad()
    learner.backward(loss)
    return learner.apply()


def test_a_step_descends():
    learner, weight = make()
    norm, stepped = step(learner, (weight * torch.tensor([3.0, 4.0])).sum())
    assert stepped
    assert norm.item() == pytest.approx(5.0)
    assert weight.tolist() == pytest.approx([0.7, 1.6])


def test_the_gradient_is_clipped_by_its_global_norm():
    learner, weight = make(max_grad_norm=1.0)
    norm, _ = step(learner, (weight * torch.tensor([3.0, 4.0])).sum())
    assert norm.item() == pytest.approx(5.0)
    assert weight.tolist() == pytest.approx([1 - 0.06, 2 - 0.08], abs=1e-5)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_leaves_weights_and_momentum_alone(poison: float):
    learner, weight = make()
    step(learner, weight.sum())
    before = weight.detach().clone()
    momentum = learner.raw_optimizer.state[weight]["momentum_buffer"].clone()
    _, stepped = step(learner, (weight * poison).sum())
    assert not stepped
    assert torch.equal(weight.detach(), before)
    assert torch.equal(learner.raw_optimizer.state[weight]["momentum_buffer"], momentum)
    # And the next good step is not spoilt by what was left of the bad one.
    step(learner, weight.sum())
    assert weight.tolist() == pytest.approx((before - 0.1 * (1 + 0.9)).tolist())


def test_a_loss_scale_that_was_too_large_shrinks_and_training_goes_on(monkeypatch: pytest.MonkeyPatch):
    """Accelerate's set-up for float16, with torch's scaler for the CPU."""
    learner, weight = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    monkeypatch.setattr(type(learner.accelerator), "mixed_precision", property(lambda _: "fp16"))
    optimizer = AcceleratedOptimizer(learner.raw_optimizer, device_placement=False, scaler=scaler)
    learner.accelerator.scaler, learner.accelerator.native_amp = scaler, True
    learner.accelerator._optimizers = [optimizer]
    learner._optimizer, learner._clip = optimizer, learner.accelerator.clip_grad_norm_
    # 4 * 1e38 is more than a float32 holds.
    _, stepped = step(learner, (weight * 1e38).sum())
    assert not stepped
    assert weight.tolist() == [1.0, 2.0]
    assert scaler.get_scale() == 2.0
    norm, stepped = step(learner, (weight * 0.5).sum())
    assert stepped
    assert norm.item() == pytest.approx(0.5 * math.sqrt(2))
    assert weight.tolist() == pytest.approx([0.95, 1.95])


def test_a_loss_in_parts_steps_as_a_whole_does():
    learner, weight = make()
    learner.zero_grad()
    for number, last in ((3.0, False), (1.0, True)):
        with learner.accumulate(last=last):
            learner.backward(weight[0] * number)
    learner.apply()
    assert weight.tolist() == pytest.approx([1 - 0.4, 2.0])


def test_frozen_parameters_and_buffers_are_never_sent():
    module = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    module[0].weight.requires_grad_(False)
    ignore_frozen_parameters(module)
    ignored = set(module._ddp_params_and_buffers_to_ignore)
    assert ignored == {"0.weight", "1.running_mean", "1.running_var", "1.num_batches_tracked"}
