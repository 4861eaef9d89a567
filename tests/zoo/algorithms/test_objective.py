"""The parts of the loss add up as said, and each knob reaches its part."""

from __future__ import annotations

import math

import pytest
import torch

from zoo.algorithms.objective import Objective
from zoo.rollout.types import Minibatch, Scored

SETTINGS = {
    "clip_low": 0.2,
    "clip_high": 0.2,
    "dual_clip": None,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "clip_vf": None,
    "value_clip": "replace",
    "huber_delta": None,
}


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


def scored() -> Scored:
    return Scored(
        logprob_BL=torch.log(torch.tensor([[1.0, 1.1], [1.0, 0.9]])),
        entropy_BL=torch.full((2, 2), math.log(4)),
        value_BU=torch.tensor([[3.0], [1.0]]),
    )


def test_the_parts_add_up():
    terms = Objective(**{**SETTINGS, "ent_coef": 0.1})(scored(), batch())
    # Policy: mean of -1, -1.1, 1, 0.9 = -0.05. Value: mean of 4 and 1.
    assert terms.policy.item() == pytest.approx(-0.05)
    assert terms.value.item() == pytest.approx(2.5)
    assert terms.entropy.item() == pytest.approx(math.log(4))
    assert terms.loss.item() == pytest.approx(-0.05 - 0.1 * math.log(4) + 0.5 * 2.5)


def test_without_a_critic_values_do_not_matter():
    terms = Objective(**{**SETTINGS, "vf_coef": 0.0})(scored(), batch())
    assert terms.value.item() == 0.0
    assert terms.loss.item() == pytest.approx(-0.05)


def test_weights_choose_the_elements():
    # Only element (0, 1) counts, with weight 2: mean over two decisions of 2 * -1.1 and 0.
    weight_BL = torch.tensor([[0.0, 2.0], [0.0, 0.0]])
    terms = Objective(**{**SETTINGS, "vf_coef": 0.0})(scored(), batch(weight_BL))
    assert terms.policy.item() == pytest.approx(-1.1)


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
    terms = Objective(**{**SETTINGS, **change})(scored(), batch())
    assert terms.policy.item() == pytest.approx(policy)
    assert terms.value.item() == pytest.approx(value)
