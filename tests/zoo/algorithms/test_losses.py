"""Numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from zoo.algorithms.losses import PPOLoss, Scores, clipped_surrogate, kl_k1, kl_k3, value_loss
from zoo.rollout.buffer import Minibatch


def surrogate(ratio: float, advantage: float, **options: float | None) -> float:
    settings = {"clip_low": 0.2, "clip_high": 0.2, **options}
    logprob = torch.tensor(math.log(ratio))
    return clipped_surrogate(logprob, torch.zeros(()), torch.tensor(advantage), **settings).item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.0, 2.0, -2.0),  # nothing to clip
        (1.1, 2.0, -2.2),  # inside the band
        (1.5, 2.0, -2.4),  # good and already likelier: capped at 1.2
        (0.5, 2.0, -1.0),  # good but unlikelier: not clipped, the loss pulls it back
        (1.5, -2.0, 3.0),  # bad and likelier: not clipped
        (0.5, -2.0, 1.6),  # bad and already unlikelier: capped at 0.8
    ],
)
def test_clipped_surrogate(ratio: float, advantage: float, loss: float):
    assert surrogate(ratio, advantage) == pytest.approx(loss)


@pytest.mark.parametrize(("ratio", "advantage", "slope"), [(1.5, 1.0, 0.0), (1.1, 1.0, -1.1), (1.5, -1.0, 1.5)])
def test_gradient_stops_where_the_clip_binds(ratio: float, advantage: float, slope: float):
    logprob = torch.tensor([math.log(ratio)], requires_grad=True)
    result = clipped_surrogate(logprob, torch.zeros(1), torch.tensor([advantage]), clip_low=0.2, clip_high=0.2)
    result.sum().backward()
    assert logprob.grad is not None
    assert logprob.grad.item() == pytest.approx(slope)


def scalar(*values: float) -> list[Tensor]:
    return [torch.tensor([value]) for value in values]


def test_plain_value_loss_is_the_squared_error():
    assert value_loss(*scalar(1.0, 0.0, 4.0)).item() == 9.0


def test_clipped_value_may_replace_or_join_the_value():
    # V moved from 0 to 1 with a band of 0.2: V_clip = 0.2; target 0.5.
    value, old, target = scalar(1.0, 0.0, 0.5)
    assert value_loss(value, old, target, clip=0.2).item() == pytest.approx(0.09)
    assert value_loss(value, old, target, clip=0.2, value_clip="max").item() == pytest.approx(0.25)
    # Inside the band both are the plain error.
    value, old, target = scalar(0.1, 0.0, 0.5)
    assert value_loss(value, old, target, clip=0.2, value_clip="max").item() == pytest.approx(0.16)


@pytest.mark.parametrize(("error", "loss"), [(2.0, 2.0), (9.0, 40.5), (10.0, 50.0), (12.0, 70.0), (-12.0, 70.0)])
def test_huber_is_half_the_square_then_linear(error: float, loss: float):
    # Beyond 10: 10 * (|e| - 5).
    assert value_loss(*scalar(error, 0.0, 0.0), huber_delta=10.0).item() == pytest.approx(loss)


def test_kl_estimates():
    log_ratio = torch.tensor([0.0, math.log(2.0)])
    assert kl_k1(log_ratio).tolist() == pytest.approx([0.0, -math.log(2.0)])
    assert kl_k3(log_ratio).tolist() == pytest.approx([0.0, 1.0 - math.log(2.0)])


SETTINGS = {"clip_low": 0.2, "clip_high": 0.2, "vf_coef": 0.5}


def batch(weight_BL: torch.Tensor | None = None) -> Minibatch:
    return Minibatch(
        obs=None,
        choice=None,
        executed_B=None,
        old_logprob_BL=torch.zeros(2, 2),
        advantage_BL=torch.tensor([[1.0], [-1.0]]),
        return_BU=torch.tensor([[1.0], [0.0]]),
        old_value_BU=torch.zeros(2, 1),
        mask_BL=None,
        weight_BL=weight_BL,
    )


def scored() -> Scores:
    return Scores(
        logprob_BL=torch.log(torch.tensor([[1.0, 1.1], [1.0, 0.9]])),
        entropy_BL=torch.full((2, 2), math.log(4)),
        value_BU=torch.tensor([[3.0], [1.0]]),
    )


@pytest.mark.parametrize(
    ("change", "policy", "value"),
    [
        ({"clip_low": 0.05}, (-1 - 1.1 + 1 + 0.95) / 4, 2.5),
        ({"clip_high": 0.05}, (-1 - 1.05 + 1 + 0.9) / 4, 2.5),
        ({"clip_vf": 0.5}, -0.05, (0.25 + 0.25) / 2),
        ({"clip_vf": 0.5, "value_clip": "max"}, -0.05, 2.5),
        ({"huber_delta": 1.0}, -0.05, ((2 - 0.5) + 0.5) / 2),
    ],
)
def test_each_knob_reaches_its_part(change: dict[str, object], policy: float, value: float):
    terms = PPOLoss(**{**SETTINGS, **change})(scored(), batch())
    assert terms.policy.item() == pytest.approx(policy)
    assert terms.value.item() == pytest.approx(value)
